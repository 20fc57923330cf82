package collective

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/connection/ethernet"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/topology"
)

// The ends of the links of four GPUs: -1 is a switch, -2 what NVML does not say. archs are theirs where they
// are not sm_90.
var linkedMachines = map[string]struct {
	ends  [4][]int
	want  string
	archs []string
}{
	"no links":                    {ends: [4][]int{}, want: otherLink},
	"switches":                    {ends: switched, want: NVLink},
	"each with each":              {ends: [4][]int{{1, 2, 3}, {0, 2, 3}, {0, 1, 3}, {0, 1, 2}}, want: NVLink},
	"bridged pairs":               {ends: [4][]int{{1, 1}, {0, 0}, {3, 3}, {2, 2}}, want: otherLink},
	"a ring":                      {ends: [4][]int{{1, 3}, {0, 2}, {1, 3}, {0, 2}}, want: otherLink},
	"one apart":                   {ends: [4][]int{{1, 2}, {0, 2}, {0, 1}, {}}, want: otherLink},
	"a machine that does not say": {ends: [4][]int{{-2}, {-2}, {-2}, {-2}}, want: NVLink},
	"old GPUs":                    {ends: switched, want: otherLink, archs: []string{"sm_60", "sm_60", "sm_60", "sm_60"}},
	"GPUs of two kinds":           {ends: switched, want: otherLink, archs: []string{"sm_90", "sm_90", "sm_100", "sm_90"}},
}

var switched = [4][]int{{-1, -1}, {-1, -1}, {-1, -1}, {-1}}

// TestLink has emulated devices on machines with links of several kinds: packets of 128 bytes,
// which PCIe may split, are for those whose GPUs all reach each other by NVLinks.
func TestLink(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("GPUs have links of their own")
	}
	for name, c := range linkedMachines {
		t.Run(name, func(t *testing.T) {
			testgroup.Run(t, 4, communicator.Options{Scratch: 4 << 20}, func(ctx context.Context, comm *communicator.Communicator) error {
				id := comm.Device().Info().UUID
				ids, err := comm.AllGather(ctx, id[:])
				testerr.Check(t, err)
				arch := "sm_90"
				if c.archs != nil {
					arch = c.archs[comm.Rank()]
				}
				runner := testerr.Must(newRunner(ctx, comm, Options{}, linkedMachine(ids, c.ends), arch))(t)
				if runner.Link() != c.want {
					err = fmt.Errorf("the link is %q, want %q", runner.Link(), c.want)
				}
				if chosen := chooses128(runner); chosen != (c.want == NVLink) {
					err = errors.Join(err, fmt.Errorf("LL128 is chosen: %v", chosen))
				}
				return errors.Join(err, lines(ctx, runner, c.want == NVLink), modelChooses(runner), runner.Close(ctx))
			})
		})
	}
}

// lines returns the error of a runner that takes packets of 128 bytes where they may be split, or not where
// they are whole: of a choice, and of rules for any link.
func lines(ctx context.Context, r *Runner, whole bool) error {
	call := Call{Kind: AllReduce, Type: F32, Op: Sum, Count: 64, InPlace: true}
	b, err := r.comm.Device().Alloc(256)
	if err == nil {
		call.Out, err = r.Share(ctx, b)
	}
	if err != nil {
		return err
	}
	split := call
	split.Choice = Choice{"oneShotLL128", 1, 32}
	op, err := r.Prepare(ctx, split)
	if (err == nil) != whole || !whole && !strings.Contains(err.Error(), "NVLink") {
		return fmt.Errorf("LL128 that is asked for: %v", err)
	}
	built := r.tuning
	defer func() { r.tuning = built }()
	r.tuning = &Tuning{Rules: []Rule{
		{Link: "*", Kind: AllReduce, UpTo: 1 << 20, Choice: split.Choice}, {Link: "*", Kind: AllReduce, UpTo: 1 << 20, Choice: Choice{"direct", 1, 32}},
	}}
	if choice, err := r.Choose(call); err != nil || (choice == split.Choice) != whole {
		return fmt.Errorf("rules for any link choose %v, %v", choice, err)
	}
	return errors.Join(op.Close(), call.Out.Close(ctx), b.Close())
}

// modelChooses returns the error of a runner that knows the links, and does not choose by the
// model where these are not NVLinks.
func modelChooses(r *Runner) error {
	if r.links == nil {
		return errors.New("the links are unknown")
	}
	if r.Link() == NVLink {
		return nil
	}
	for shift := range 28 {
		call := Call{Kind: AllReduce, Type: F32, Op: Sum, Count: 1 << shift}
		got, err := r.Choose(call)
		if err != nil {
			return err
		}
		for _, call.Choice = range r.links.choices(AllReduce, 4<<shift, Choice{byModel, 32, 256}) {
			if r.Internal().Fits(call) == nil {
				break
			}
		}
		if got != call.Choice {
			return fmt.Errorf("%d bytes: %v is chosen, and %v by the model", 4<<shift, got, call.Choice)
		}
	}
	return nil
}

// linkedMachine returns a machine with the GPUs of four ranks.
func linkedMachine(ids [][]byte, ends [4][]int) *topology.Machine {
	m := &topology.Machine{}
	for rank := range ends {
		g := topology.GPU{UUID: [16]byte(ids[rank]), PCIBusID: fmt.Sprintf("0000:%02x:00.0", rank+1)}
		for number, end := range ends[rank] {
			l := topology.Link{Number: number, Active: true}
			switch {
			case end == -1:
				l.Peer = topology.PeerSwitch
			case end >= 0:
				l.Peer, l.PeerPCI = topology.PeerGPU, fmt.Sprintf("0000:%02x:00.0", end+1)
			}
			g.NVLinks = append(g.NVLinks, l)
		}
		m.GPUs = append(m.GPUs, g)
	}
	return m
}

// chooses128 reports whether the runner has packets of 128 bytes for any size of any collective.
func chooses128(r *Runner) bool {
	return slices.ContainsFunc(Kinds(), func(kind Kind) bool {
		for shift := range 28 {
			choice, err := r.Choose(Call{Kind: kind, Type: F32, Op: Sum, Count: 1 << shift})
			if err == nil && strings.Contains(choice.Algorithm, "LL128") {
				return true
			}
		}
		return false
	})
}

// TestFabricByTransport has groups on two hosts that go by Ethernet, in machines with RDMA devices: the
// model knows nothing where the machine has no others.
func TestFabricByTransport(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("GPUs have links of their own")
	}
	const rate = 25.0 / 8
	for name, known := range map[string]bool{"switches": true, "sockets": false} {
		t.Run(name, func(t *testing.T) {
			o := communicator.Options{Scratch: 4 << 20, Transports: registeredmem.Ethernet, Ethernet: ethernet.Options{Interface: "lo"}}
			testgroup.RunEach(t, []communicator.Options{o, o}, func(ctx context.Context, comm *communicator.Communicator) error {
				m := machineFile(t, name)
				m.GPUs = m.GPUs[:1]
				m.GPUs[0].UUID = comm.Device().Info().UUID
				for _, n := range m.NICs {
					if n.Kind == topology.Ethernet {
						n.Ports[0].Gbps = 8 * rate
					}
				}
				runner, err := newRunner(ctx, comm, Options{}, m, "sm_90")
				testerr.Check(t, err)
				if l := runner.links; (l != nil) != known || known && (l.fabric.Hosts != 2 || l.fabric.RDMA || l.fabric.NIC != rate || l.fabric.Net != rate) {
					err = fmt.Errorf("the links are %+v", l)
				}
				return errors.Join(err, runner.Close(ctx))
			})
		})
	}
}
