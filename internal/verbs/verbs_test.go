package verbs

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"golang.org/x/sys/unix"
)

func TestMissingLibrary(t *testing.T) {
	for library, want := range map[string]string{
		"libno-such-verbs.so.1": "install rdma-core",
		"libm.so.6":             "lacks ibv_get_device_list",
	} {
		_, err := load(library)
		if !errors.Is(err, mscclgo.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", library, err, want)
		}
	}
}

func TestNoDevice(t *testing.T) {
	names, err := Devices()
	if err == nil {
		t.Skipf("this machine has %q", names)
	}
	if !errors.Is(err, mscclgo.ErrUnsupported) {
		t.Errorf("listing: %v", err)
	}
	if _, err := Open("mlx5_0"); !errors.Is(err, mscclgo.ErrUnsupported) {
		t.Errorf("opening: %v", err)
	}
}

func TestStatus(t *testing.T) {
	for status, want := range map[uint32]string{0: "success", 10: "remote access", 12: "retries exceeded", 21: "general", 99: "status 99"} {
		if text := StatusText(status); !strings.Contains(text, want) {
			t.Errorf("status %d is %q", status, text)
		}
	}
	if Remote(4) || !Remote(10) || !Remote(12) || Remote(StatusFlushed) {
		t.Error("who is to blame is mixed up")
	}
}

// devices returns the RDMA devices to test with.
func devices(t *testing.T) []string {
	names := os.Getenv("MSCCLGO_TEST_IB_DEVICES")
	if names == "" {
		t.Skip("MSCCLGO_TEST_IB_DEVICES does not name RDMA devices to test with")
	}
	return strings.Split(names, ",")
}

func TestNoSuchDevice(t *testing.T) {
	name := devices(t)[0]
	_, err := Open("none0")
	if !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), name) {
		t.Errorf("%v does not name %s", err, name)
	}
}

// side is one device with a queue pair and a page of registered memory.
type side struct {
	ctx  *Context
	pd   *PD
	cq   *CQ
	mr   *MR
	qp   *QP
	page []byte
	gid  GID
}

func open(t *testing.T, name string) *side {
	s := new(side)
	keep := func(c interface{ Close() error }, err error) {
		t.Helper()
		testerr.Check(t, err)
		t.Cleanup(func() {
			testerr.Report(t, c.Close())
		})
	}
	var err error
	s.page = testerr.Must(unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON))(t)
	s.ctx, err = Open(name)
	keep(s.ctx, err)
	port, err := s.ctx.Port(1)
	if err != nil || !port.Active || port.MTU < 256 || port.MaxMessage == 0 {
		t.Fatalf("port 1 is %+v, %v", port, err)
	}
	if port.InfiniBand {
		t.Skip("this test connects by RoCE addresses")
	}
	a, err := s.ctx.Attributes()
	if err != nil || a.Depth < 16 || a.Entries < 16 || a.Ports < 1 {
		t.Fatalf("the device has %+v, %v", a, err)
	}
	gids := testerr.Must(GIDs(os.DirFS("/sys"), name, 1))(t)
	var ok bool
	if s.gid, ok = BestGID(gids); !ok {
		t.Fatalf("no RoCE v2 among %v", gids)
	}
	if address, err := s.ctx.GID(1, s.gid.Index); err != nil || address != s.gid.Address {
		t.Fatalf("the library has %x, %v, sysfs %x", address, err, s.gid.Address)
	}
	s.pd, err = s.ctx.NewPD()
	keep(s.pd, err)
	s.cq, err = s.ctx.NewCQ(16, nil)
	keep(s.cq, err)
	s.mr, err = s.pd.Register(uintptr(unsafe.Pointer(&s.page[0])), 4096, 0, LocalWrite|RemoteWrite|RemoteAtomic)
	keep(s.mr, err)
	s.qp, err = s.pd.NewQP(s.cq, s.cq, 16, 1, 1, RemoteWrite|RemoteAtomic)
	keep(s.qp, err)
	return s
}

func (s *side) connect(t *testing.T, peer *side) {
	testerr.Check(t, s.qp.Connect(&Path{
		GID: peer.gid.Address, PeerQP: peer.qp.Number(), MTU: 3, Port: 1, Global: true,
		GIDIndex: uint8(s.gid.Index), HopLimit: 64, Reads: 1, PeerReads: 1, Timeout: 10, Retries: 3, RNRRetries: 7, RNRTimer: 1,
	}))
}

func (s *side) post(t *testing.T, work ...Work) Completion {
	if n, err := s.qp.Post(work); err != nil || n != len(work) {
		t.Fatalf("%d of %d posted: %v", n, len(work), err)
	}
	done := make([]Completion, 4)
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if n, err := s.cq.Poll(done); err != nil || n > 1 {
			t.Fatalf("%d completions: %v", n, err)
		} else if n == 1 {
			return done[0]
		}
	}
	t.Fatal("no completion came")
	return Completion{}
}

func TestWriteAndAdd(t *testing.T) {
	names := devices(t)
	a, b := open(t, names[0]), open(t, names[len(names)-1])
	a.connect(t, b)
	b.connect(t, a)
	copy(a.page, "some data")
	done := a.post(t,
		Work{ID: 1, Local: 0, Remote: 100, Size: 9, LocalKey: a.mr.LocalKey(), RemoteKey: b.mr.RemoteKey(), Opcode: Write},
		Work{ID: 2, Local: 8, Remote: 0, Value: 7, Size: 8, LocalKey: a.mr.LocalKey(), RemoteKey: b.mr.RemoteKey(), Opcode: FetchAdd, Flags: Signaled})
	if done.ID != 2 || done.Status != StatusSuccess || done.QueuePair != a.qp.Number() {
		t.Errorf("the completion is %+v: %s", done, StatusText(done.Status))
	}
	if string(b.page[100:109]) != "some data" || b.page[0] != 7 {
		t.Errorf("the peer has %q and %d", b.page[100:109], b.page[0])
	}
	for _, step := range []struct{ compare, value, had, leaves uint64 }{{0, 9, 7, 7}, {7, 1 << 63, 7, 1 << 63}, {1 << 63, 5, 1 << 63, 5}} {
		done = a.post(t, Work{ID: 4, Local: 8, Remote: 0, Compare: step.compare, Value: step.value, Size: 8, LocalKey: a.mr.LocalKey(), RemoteKey: b.mr.RemoteKey(), Opcode: Swap, Flags: Signaled})
		had, has := *(*uint64)(unsafe.Pointer(&a.page[8])), *(*uint64)(unsafe.Pointer(&b.page[0]))
		if done.Status != StatusSuccess || had != step.had || has != step.leaves {
			t.Errorf("the swap of %#x for %#x found %#x and leaves %#x: %s", step.compare, step.value, had, has, StatusText(done.Status))
		}
	}
	done = a.post(t, Work{ID: 3, Remote: 4090, Size: 100, LocalKey: a.mr.LocalKey(), RemoteKey: b.mr.RemoteKey(), Opcode: Write, Flags: Signaled})
	if done.ID != 3 || !strings.Contains(StatusText(done.Status), "remote access error") || !Remote(done.Status) {
		t.Errorf("beyond the end: %+v: %s", done, StatusText(done.Status))
	}
}
