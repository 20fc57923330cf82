package ib

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/verbs"
	"github.com/mscclgo/mscclgo/topology"
)

// TestNear has GPUs with two NICs, and some that share one, of machines whose NICs' rates are known, and
// processes that may open only some of them.
func TestNear(t *testing.T) {
	for _, c := range []struct {
		machine string
		gpu     int // -1: none
		o       Options
		absent  []string
		want    []string
		carry   float64
	}{
		{"cards", 2, Options{}, nil, []string{"mlx5_4", "mlx5_5"}, 50},
		{"cards", 2, Options{}, []string{"mlx5_4"}, []string{"mlx5_5"}, 25},
		{"cards", 2, Options{QueuePairs: 4}, nil, []string{"mlx5_4", "mlx5_5"}, 50},
		{"cards", 2, Options{QueuePairs: 1}, nil, []string{"mlx5_4"}, 25},
		{"cards", -1, Options{}, nil, []string{"mlx5_0"}, 16 * 128.0 / 130}, // 16 lanes of PCIe 3.0 for an unknown path
		{"switches", 7, Options{}, nil, []string{"mlx5_7"}, 50},
		{"switches", 7, Options{}, []string{"mlx5_6", "mlx5_7"}, []string{"mlx5_5"}, 50},
		{"sockets", 1, Options{}, nil, []string{"mlx5_0"}, 25},
		{"cloud", 0, Options{}, nil, nil, 0},
	} {
		f, err := os.Open("../../topology/testdata/" + c.machine + ".json")
		testerr.Check(t, err)
		m, err := topology.Read(f)
		testerr.Check(t, errors.Join(err, f.Close()))
		pci := ""
		if c.gpu >= 0 {
			pci = m.GPUs[c.gpu].PCIBusID
		}
		var all []string
		for _, n := range m.NICs {
			if !slices.Contains(c.absent, n.Name) {
				all = append(all, n.Name)
			}
		}
		for _, known := range []bool{true, false} { // the rates of the NICs
			names, carry := near(m, pci, c.o, all)
			testcmp.Equal(t, c.machine, names, c.want)
			var nics []*nic
			for _, name := range names {
				nics = append(nics, &nic{name: name})
			}
			want := c.carry
			if !known {
				want = 0
			}
			testcmp.Equal(t, c.machine, together(nics, carry), want)
			for _, n := range m.NICs {
				n.Ports[0].Gbps = 0
			}
		}
	}
}

// TestOpenFirst has devices of which some do not open.
func TestOpenFirst(t *testing.T) {
	all := []string{"a", "b", "c"}
	for _, c := range []struct {
		bad, opened []string
		err         string
	}{
		{nil, []string{"a", "b"}, ""},
		{[]string{"a"}, []string{"b", "c"}, ""},
		{[]string{"a", "b"}, []string{"c"}, ""},
		{[]string{"a", "b", "c"}, nil, "a is bad"},
	} {
		var opened []string
		err := openFirst(func(without []string) ([]string, error) {
			left := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(without, name) })
			if len(left) == 0 {
				return nil, errors.New("there is none")
			}
			return left[:min(len(left), 2)], nil
		}, func(names []string) error {
			if slices.Contains(c.bad, names[0]) {
				return errors.New(names[0] + " is bad")
			}
			opened = names
			return nil
		})
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != c.err || !slices.Equal(opened, c.opened) {
			t.Errorf("%v: opened %v, %v", c.bad, opened, err)
		}
	}
}

// TestSuits has second devices, some of which are left out.
func TestSuits(t *testing.T) {
	ipv4 := [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 1}
	ipv6, local := [16]byte{0x20, 1, 15: 1}, [16]byte{0xfe, 0x80, 15: 1}
	device := func(infiniBand, atomics bool, gid [16]byte) *nic {
		return &nic{name: "n", gid: gid, state: verbs.Port{InfiniBand: infiniBand}, attributes: verbs.Attributes{Atomics: atomics}}
	}
	for _, c := range []struct {
		name          string
		first, second *nic
		want          string // in the error; "": it suits
	}{
		{"alike", device(false, true, ipv4), device(false, true, ipv4), ""},
		{"another network of InfiniBand", device(true, true, local), device(true, true, ipv6), ""},
		{"atomics more", device(true, false, local), device(true, true, local), ""},
		{"atomics less", device(true, true, local), device(true, false, local), "atomics"},
		{"another layer", device(true, true, local), device(false, true, local), "not both on InfiniBand"},
		{"no address", device(false, true, ipv4), device(false, true, local), "fe80::1"},
		{"IPv6", device(false, true, ipv4), device(false, true, ipv6), "10.0.0.1"},
		{"IPv6 and no address", device(false, true, ipv6), device(false, true, local), "fe80::1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.first.suits(c.second); c.want != "" {
				testerr.Expect(t, err, mscclgo.ErrUnsupported, c.want)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSecondDevice has a second device that nobody named, which can be used, or not.
func TestSecondDevice(t *testing.T) {
	names := testDevices(t)
	var log strings.Builder
	open := func(rank int, devices ...string) *side {
		t.Helper()
		reg := newRegistry(t, rank)
		o := testerr.Must(Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}.complete(patience))(t)
		transport := testerr.Must(newTransport(reg, o, devices))(t)
		t.Cleanup(func() {
			testerr.Report(t, errors.Join(reg.Close(), transport.Close()))
		})
		return &side{reg: reg, t: transport}
	}
	for _, c := range []struct {
		devices    [2][]string
		queuePairs int
	}{
		{[2][]string{{names[0], names[1]}, {names[1], names[0]}}, 2},
		{[2][]string{{names[0], names[1]}, {names[1], "none0"}}, 1},
	} {
		log.Reset()
		a, b := open(0, c.devices[0]...), open(1, c.devices[1]...)
		connect(t, a, b)
		if len(a.d.queues) != c.queuePairs || len(b.d.queues) != c.queuePairs {
			t.Errorf("%v: %d and %d queue pairs", c.devices, len(a.d.queues), len(b.d.queues))
		}
		if q := a.d.queues[c.queuePairs-1]; strings.Contains(q.String(), EnvDevice) != (c.queuePairs == 2) {
			t.Errorf("%v: a failure would be told of %v", c.devices, q)
		}
		if missing := strings.Contains(strings.Join(c.devices[1], " "), "none0"); strings.Contains(log.String(), "none0") != missing {
			t.Errorf("%v: the log is %q", c.devices, log.String())
		}
		puts(t, a, b, 2, 400_000, false)
	}
	if _, err := newTransport(newRegistry(t, 0), Options{Timeout: patience}, []string{"none0", names[0]}); err == nil {
		t.Error("the first device is not there")
	}
}
