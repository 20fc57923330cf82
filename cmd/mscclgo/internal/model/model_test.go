package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/internal/bytesize"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/topology"
)

// machineFile reads one of the machines of topology's tests.
func machineFile(t testing.TB, name string) *topology.Machine {
	t.Helper()
	f := testerr.Must(os.Open("../../../../topology/testdata/" + name + ".json"))(t)
	defer f.Close()
	return testerr.Must(topology.Read(f))(t)
}

// fabricOf returns the fabric of the first GPUs of a machine, or of all.
func fabricOf(t testing.TB, name string, gpus, hosts int) Fabric {
	t.Helper()
	m := machineFile(t, name)
	if gpus > 0 {
		m.GPUs = m.GPUs[:gpus]
	}
	return testerr.Must(FabricOf(m, hosts))(t)
}

// measurement is a row of a table of docs/MEASUREMENTS.md.
type measurement struct {
	kind      collective.Kind
	ranks     int
	bytes     uint64
	algorithm string
	micros    float64
}

// measured reads the tables. Rows that are marked with a star are of older kernels.
func measured(t *testing.T) (all []measurement) {
	t.Helper()
	text := testerr.Must(os.ReadFile("../../../../docs/MEASUREMENTS.md"))(t)
	heading := regexp.MustCompile(`^\*\*(.*)\*\*, (\d+) GPUs$`)
	row := regexp.MustCompile("^\\| (\\d+[KMG]?) \\| `(\\w+)` \\d+x\\d+( [†*])? \\| ([0-9.]+) \\|")
	var kind collective.Kind
	ranks := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if h := heading.FindStringSubmatch(line); h != nil {
			kind = testerr.Must(collective.ParseKind(h[1]))(t)
			ranks, _ = strconv.Atoi(h[2])
		}
		r := row.FindStringSubmatch(line)
		if r == nil || r[3] == " *" {
			continue
		}
		bytes := testerr.Must(bytesize.Parse(r[1]))(t)
		micros := testerr.Must(strconv.ParseFloat(r[4], 64))(t)
		all = append(all, measurement{kind, ranks, bytes, r[2], micros})
	}
	if len(all) < 140 {
		t.Fatalf("docs/MEASUREMENTS.md has %d measurements", len(all))
	}
	return all
}

// mostOff is the factor within which predictions over collective.NVLink are promised to be, on two and
// four GPUs.
const mostOff = 1.5

// TestMeasured compares predictions with all that was measured on two and four H200s.
func TestMeasured(t *testing.T) {
	worst, sum, n := 1.0, 0.0, 0
	for _, m := range measured(t) {
		f := fabricOf(t, "switches", m.ranks, 1)
		got, ok := f.Time(m.kind, m.algorithm, m.bytes)
		if !ok {
			t.Errorf("no time for %+v", m)
			continue
		}
		off := float64(got) / 1000 / m.micros
		factor := max(off, 1/off)
		sum, n, worst = sum+math.Log(factor), n+1, max(worst, factor)
		if factor > mostOff {
			t.Errorf("%v by %s on %d GPUs, %s: %v, measured %v us", m.kind, m.algorithm, m.ranks, bytesize.Format(m.bytes), got, m.micros)
		}
	}
	t.Logf("%d measurements; off by a factor of %.2f at most, %.2f in the geometric mean", n, worst, math.Exp(sum/float64(n)))
}

// TestModelAgrees finds that the model would mostly choose what measurements chose on two and four
// H200s, apart from the kind of packet.
func TestModelAgrees(t *testing.T) {
	agree, all := 0, 0
	for _, m := range measured(t) {
		f := fabricOf(t, "switches", m.ranks, 1)
		chosen, _, ok := f.least(m.kind, m.bytes, func(string) bool { return true })
		if !ok {
			t.Fatalf("no choice for %+v", m)
		}
		all++
		family := func(name string) string { return strings.TrimRight(name, "L12468") }
		if family(chosen) == family(m.algorithm) {
			agree++
		}
	}
	t.Logf("the model's choice is of the measured family in %d of %d", agree, all)
	if agree*10 < all*7 {
		t.Errorf("the model's choice is of the measured family in %d of %d only", agree, all)
	}
}

// TestMonotone finds that more bytes never take less time, and that wider links never take more.
func TestMonotone(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	var fabrics []Fabric
	for _, name := range []string{"switches", "bridges", "sockets", "cloud", "cards"} {
		for _, hosts := range []int{1, 2, 3, 16, 1250} {
			fabrics = append(fabrics, fabricOf(t, name, 0, hosts))
			fabrics = append(fabrics, fabricOf(t, name, 1, hosts))
		}
	}
	for _, f := range fabrics {
		wider := f
		for _, v := range []*float64{&wider.All, &wider.Next, &wider.Rings, &wider.NIC, &wider.Net} {
			*v *= 1 + random.Float64()
		}
		for _, k := range collective.Kinds() {
			last := map[string]time.Duration{}
			for shift := range 50 {
				for _, p := range f.Predict(k, 1<<shift+random.Uint64N(1<<shift)) {
					if p.Time <= 0 || p.Time < last[p.Algorithm] {
						t.Fatalf("%+v: %v by %s: %v for 2^%d bytes, %v for fewer", f, k, p.Algorithm, p.Time, shift, last[p.Algorithm])
					}
					last[p.Algorithm] = p.Time
				}
				for _, p := range f.Predict(k, 1<<shift) {
					if w, _ := wider.Time(k, p.Algorithm, 1<<shift); w > p.Time {
						t.Fatalf("%+v: %v by %s of 2^%d bytes: %v, with wider links %v", f, k, p.Algorithm, shift, p.Time, w)
					}
				}
			}
		}
	}
}

// TestRoutedTimes has a rank put to fewer ranks by hier than by ports, and the root's host share what by ports
// the root's NIC takes.
func TestRoutedTimes(t *testing.T) {
	f := fabricOf(t, "switches", 0, 4)
	us := func(k collective.Kind, name string, bytes uint64) float64 {
		d, ok := f.Time(k, name, bytes)
		if !ok {
			t.Fatalf("no time for %v by %s", k, name)
		}
		return float64(d) / 1000
	}
	for _, c := range []struct {
		kind        collective.Kind
		puts        float64 // fewer by hier
		least, most float64 // times of hier that much takes by ports
	}{{collective.AllToAll, 31 - 3, 0.99, 1.01}, {collective.Gather, 31 - 1, 6, 8}, {collective.Scatter, 31 - 3, 5, 8}} {
		if less := us(c.kind, "ports", 32) - us(c.kind, "hier", 32); less < (c.puts-5)*posting || less > c.puts*posting {
			t.Errorf("a tiny %v takes %.1f us less by hier, with %v puts less", c.kind, less, c.puts)
		}
		// Threads take a little longer for what a root has than the NICs do.
		if ratio := us(c.kind, "ports", 1<<32) / us(c.kind, "hier", 1<<32); ratio < c.least || ratio > c.most {
			t.Errorf("%v of 4G takes %.2f times as long by ports as by hier, want %v to %v", c.kind, ratio, c.least, c.most)
		}
	}
}

func TestPredictions(t *testing.T) {
	one, many := fabricOf(t, "switches", 0, 1), fabricOf(t, "switches", 0, 1250)
	names := func(f Fabric, k collective.Kind) string {
		var all []string
		for _, p := range f.Predict(k, 1<<20) {
			if !p.Built {
				p.Algorithm += "?"
			}
			all = append(all, p.Algorithm)
		}
		return strings.Join(all, " ")
	}
	for _, c := range []struct{ got, want string }{
		{names(one, collective.AllReduce), "oneShotLL8 oneShotLL16 oneShotLL128 twoShotLL16 twoShotLL128 direct pushed ring staged hier hierRing hierTree rings? tree?"},
		{names(many, collective.AllReduce), "ring hier hierRing hierTree rings? tree?"},
		{names(one, collective.Broadcast), "LL8 LL16 LL128 direct relayedLL128 relayed bulk ports hier"},
		{names(many, collective.AllGather), "ports hier"},
		{names(many, collective.ReduceScatter), "hier"},
		{names(many, collective.Reduce), "hier"},
		{names(many, collective.AllToAll), "ports hier"},
		{names(many, collective.SendReceive), "ports"},
		{names(many, collective.Gather), "ports hier"},
		{names(many, collective.Scatter), "ports hier"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
	if many.Ranks != 10000 || many.Net != 50 || many.NIC != 50 || !many.RDMA || math.Abs(one.All-450) > 1e-6 || one.Path != topology.PathNVL {
		t.Errorf("%+v, %+v", one, many)
	}
	// The ring passes each of 10000 ranks twice, the tree 11 levels of hosts: 1250 < 2^11.
	ring, _ := many.Time(collective.AllReduce, "rings", 8)
	tree, _ := many.Time(collective.AllReduce, "tree", 8)
	if ring < 2*1250*6*time.Microsecond || tree > 2*(11*6+7)*time.Microsecond+5*time.Microsecond {
		t.Errorf("8 bytes on 10000 ranks take %v by ring, %v by tree", ring, tree)
	}
	// In the end the bandwidth of all NICs together counts: each carries the data twice.
	for _, name := range []string{"rings", "tree"} {
		got, _ := many.Time(collective.AllReduce, name, 1<<40)
		bytes := float64(uint64(1) << 40)
		least := time.Duration(2 * bytes * 1249 / 1250 / (8 * 50) / 0.92)
		if got < least || got > least*5/4 {
			t.Errorf("2^40 bytes by %s: %v, and the NICs take %v", name, got, least)
		}
	}
	for _, f := range []inside.Fabric[topology.Path]{{}, {Ranks: 1}, {Ranks: 2, Hosts: 3}} {
		if got, ok := (Fabric{Fabric: f}).Time(collective.AllReduce, "direct", 1); ok {
			t.Errorf("%+v: %v", f, got)
		}
	}
	if _, ok := one.Time(collective.AllReduce, "carrierPigeon", 1); ok {
		t.Error("there is a time for an algorithm that there is not")
	}
	if got, ok := (Fabric{Fabric: inside.Fabric[topology.Path]{Ranks: 2, Hosts: 1}}).Time(collective.AllReduce, "direct", math.MaxUint64); !ok || got != math.MaxInt64 {
		t.Errorf("without bandwidth: %v, %v", got, ok)
	}
}

func ExampleFabric_Predict() {
	// Two hosts of four ranks, each with NVLinks of 450 GB/s and a NIC of 50 GB/s.
	f := Fabric{inside.Fabric[topology.Path]{Ranks: 8, Hosts: 2, Path: topology.PathNVL, All: 450, Next: 450, NIC: 50, Net: 50, RDMA: true}, 200}
	for _, p := range f.Predict(collective.AllReduce, 1<<30) {
		fmt.Println(p.Algorithm, p.Built, p.Time.Round(100*time.Microsecond))
	}
	// Output:
	// ring true 40.9ms
	// hier true 10.4ms
	// hierRing true 10.5ms
	// hierTree true 17ms
	// rings false 10.2ms
	// tree false 12.6ms
}

// TestEightGPUs checks the rules and the predictions for eight GPUs in docs/MEASUREMENTS.md against
// the default rules and the model.
func TestEightGPUs(t *testing.T) {
	text := testerr.Must(os.ReadFile("../../../../docs/MEASUREMENTS.md"))(t)
	tuning := testerr.Must(collective.DefaultTuning())(t)
	f := fabricOf(t, "switches", 8, 1)
	row := regexp.MustCompile("^\\| ([a-z-]+) \\| (\\d+[KM]) \\| `(\\w+)` (\\d+x\\d+) \\| ([0-9.]+) \\| ([0-9.]+) \\|")
	rows := 0
	for line := range strings.Lines(string(text)) {
		r := row.FindStringSubmatch(line)
		if r == nil {
			continue
		}
		rows++
		kind := testerr.Must(collective.ParseKind(r[1]))(t)
		bytes := testerr.Must(bytesize.Parse(r[2]))(t)
		choice, ok := tuning.Choose(collective.NVLink, kind, 8, bytes, func(collective.Choice) bool { return true })
		if grid := fmt.Sprintf("%dx%d", choice.Blocks, choice.Threads); !ok || choice.Algorithm != r[3] || grid != r[4] {
			t.Errorf("the rule for %v of %s is %+v: %s", kind, r[2], choice, line)
			continue
		}
		all, _ := f.Time(kind, choice.Algorithm, bytes)
		latency, _ := f.Time(kind, choice.Algorithm, 0)
		for i, want := range []time.Duration{all, all - latency} {
			us := float64(want) / 1000
			if got, err := strconv.ParseFloat(r[5+i], 64); err != nil || math.Abs(got-us) > max(0.006, us*0.0005) {
				t.Errorf("the model gives %.2f us where there is %s: %s", us, r[5+i], line)
			}
		}
	}
	if rows != 54 {
		t.Errorf("%d rows", rows)
	}
}
