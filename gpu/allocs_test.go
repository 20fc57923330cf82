package gpu

import (
	"encoding/binary"
	"testing"

	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/signature"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// A backend that does nothing, so that only package gpu itself is measured.
type (
	idleDevice struct{ backend.Device }
	idleKernel struct{ backend.Kernel }
	idleStream struct {
		backend.Stream
		args [128]byte // of the last launch
	}
)

func (idleDevice) Info() backend.Info {
	return backend.Info{Name: "idle:0", MaxThreadsPerBlock: 1024, MaxSharedPerBlock: 48 << 10}
}

func (idleKernel) Params() []backend.Param {
	return []backend.Param{{Offset: 0, Size: 8}, {Offset: 8, Size: 4}, {Offset: 16, Size: 8}, {Offset: 24, Size: 64}}
}

func (s *idleStream) Launch(_ backend.Kernel, _ backend.LaunchConfig, args []byte) error {
	copy(s.args[:], args)
	return nil
}

func (s *idleStream) Capture() (uint64, error) { return 0, nil }

// TestLaunchAllocatesNothing launches with arguments that are boxed already, which
// is the caller's part. A graph's replay aside, launching is what a program does
// most.
func TestLaunchAllocatesNothing(t *testing.T) {
	dev := newDevice(idleDevice{})
	idle := &idleStream{}
	s := &Stream{dev: dev, b: idle}
	k := newKernel(&Module{dev: dev, kernels: map[string][]signature.Param{"idle": {
		{Name: "p", Type: signature.Type{Kind: signature.Pointer, Size: 8}},
		{Name: "n", Type: signature.Type{Kind: signature.Uint, Size: 4}},
		{Name: "i", Type: signature.Type{Kind: signature.Int, Size: 8}},
		{Name: "h", Type: signature.Type{Kind: signature.Struct, Size: 64}},
	}}}, "idle", idleKernel{})
	type handle struct {
		Pointer Ptr
		Sizes   [6]uint64
		Rank    uint32
	}
	args := []any{Ptr(0x1234), uint32(5), 6, handle{Pointer: 7, Rank: 8}}
	cfg := Blocks(2, 64)
	launch := func() {
		testerr.Check(t, k.Launch(s, cfg, args...))
	}
	launch()
	if err := k.Launch(s, cfg, uint64(0x1234), uint32(5), 6, handle{}); err == nil {
		t.Error("a number for a pointer: the types are not checked")
	}
	for at, want := range map[int]uint32{0: 0x1234, 8: 5, 16: 6, 24: 7, 80: 8} {
		if got := binary.NativeEndian.Uint32(idle.args[at:]); got != want {
			t.Errorf("the kernel gets %d at %d, want %d", got, at, want)
		}
	}
	// The race detector makes sync.Pool forget at random.
	if n := testing.AllocsPerRun(1000, launch); n >= 1 {
		t.Errorf("a launch allocates %v times", n)
	}
	packed := make([]byte, k.bytes)
	if n := testing.AllocsPerRun(1000, func() {
		in := s.Internal()
		if _, err := in.Enter("try"); err != nil || in.Capture() != 0 || in.Usable("try") != nil || k.Internal().LaunchPacked(s, cfg, packed) != nil {
			t.Fatal("a call failed")
		}
	}); n >= 1 {
		t.Errorf("calls of other packages of this module allocate %v times", n)
	}
	s.outside.Store(true)
	if n := testing.AllocsPerRun(1000, launch); n >= 1 {
		t.Errorf("a launch on a stream that other code has allocates %v times", n)
	}
}
