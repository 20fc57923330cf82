package collective

import (
	"math"
	"os"
	"slices"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/topology"
)

// machineFile reads one of the machines of topology's tests.
func machineFile(t testing.TB, name string) *topology.Machine {
	t.Helper()
	f := testerr.Must(os.Open("../topology/testdata/" + name + ".json"))(t)
	defer f.Close()
	return testerr.Must(topology.Read(f))(t)
}

// fabricOf returns what joins ranks on the first GPUs of a machine, or on all.
func fabricOf(t testing.TB, name string, gpus, hosts int) fabric {
	t.Helper()
	m := machineFile(t, name)
	if gpus > 0 {
		m.GPUs = m.GPUs[:gpus]
	}
	return testerr.Must(m.Internal().Fabric(hosts))(t)
}

// TestModelledRules finds that all rules can be read, and that the last algorithm of each is for any size.
func TestModelledRules(t *testing.T) {
	links := map[string]map[Kind]bool{}
	for _, r := range modelledRules() {
		for i, name := range r.names {
			if a, err := r.kind.algorithm(name); err != nil || (r.link == "rdma" || r.link == "tcp") && !a.about().hosts {
				t.Errorf("%+v: %v", r, err)
			}
			if last := i == len(r.names)-1; last != math.IsInf(r.below[i], 1) || !slices.IsSorted(r.below) {
				t.Errorf("%+v: sizes", r)
			}
		}
		if links[r.link] == nil {
			links[r.link] = map[Kind]bool{}
		}
		links[r.link][r.kind] = true
	}
	for _, link := range []string{"nvlink", "pcie", "rdma", "tcp"} {
		if len(links[link]) != len(Kinds()) {
			t.Errorf("%s has rules for %v", link, links[link])
		}
	}
}

// TestByModel has links of which nothing is known, and links that carry nothing.
func TestByModel(t *testing.T) {
	for _, f := range []fabric{{}, {Ranks: 2}} {
		if names := AllReduce.Internal().ByModel(f, 1024); names != nil {
			t.Errorf("%+v: %v", f, names)
		}
	}
	for _, kind := range Kinds() {
		if names := kind.Internal().ByModel(fabric{Ranks: 2, Hosts: 1}, 1024); len(names) == 0 {
			t.Errorf("no rule for %v over links that carry nothing", kind)
		}
		if names := kind.Internal().ByModel(fabric{Ranks: 1, Hosts: 1, All: math.Inf(1), Next: math.Inf(1)}, 1<<40); len(names) == 0 {
			t.Errorf("no rule for %v on one rank", kind)
		}
	}
}

// TestModelThreads has choices by the model with more threads than blocks of some kernels can have.
func TestModelThreads(t *testing.T) {
	grids := map[int]int{}
	for _, f := range []fabric{fabricOf(t, "switches", 4, 1), fabricOf(t, "sockets", 0, 2)} {
		for _, kind := range Kinds() {
			for shift := range 32 {
				all := rulesFor(&f).choices(kind, 1<<shift, Choice{byModel, 32, 1024})
				if len(all) == 0 {
					t.Errorf("no choice for %v of %d bytes on %d hosts", kind, 1<<shift, f.Hosts)
				}
				for _, got := range all {
					if a, err := kind.algorithm(got.Algorithm); err != nil || got.Threads != a.about().mostThreads() {
						t.Errorf("%v of %d bytes on %d hosts: %+v", kind, 1<<shift, f.Hosts, got)
					}
					grids[got.Threads]++
				}
			}
		}
	}
	if grids[512] == 0 || grids[1024] == 0 {
		t.Errorf("choices by threads: %v", grids)
	}
}

// TestOnlyWith has some GPUs of a machine, which have no NICs of others.
func TestOnlyWith(t *testing.T) {
	m := machineFile(t, "sockets")
	only := onlyWith(m, []topology.GPU{m.GPUs[7], m.GPUs[2]})
	var names []string
	for _, n := range only.NICs {
		names = append(names, n.Name)
	}
	testcmp.Equal(t, "NICs", names, []string{"mlx5_1", "mlx5_3"})
	if only.GPUs[0].Index != 7 || only.GPUs[1].Index != 2 || len(m.GPUs) != 8 || len(m.NICs) != 4 {
		t.Errorf("GPUs %+v of %d", only.GPUs, len(m.GPUs))
	}
	if served := only.Internal().Serving(); served[0].Sharing != 1 || served[0].Near.Name != "mlx5_3" {
		t.Errorf("%+v", served)
	}
}
