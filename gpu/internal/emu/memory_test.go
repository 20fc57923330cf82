package emu_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/gpu/internal/emu"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/nativetest"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

func TestDescriptors(t *testing.T) {
	owner, other := open(t), open(t)
	mem := alloc(t, owner, 10000)
	page := uint64(os.Getpagesize())
	if mem.Size()%page != 0 || mem.Size() < 10000 || mem.Size() >= 10000+page {
		t.Errorf("10000 bytes became %d", mem.Size())
	}
	fd, err := mem.ExportFD()
	must(t, err)
	defer unix.Close(fd)
	there, err := other.ImportFD(fd, mem.Size())
	must(t, err)
	if there.Ptr() == mem.Ptr() {
		t.Error("an import is at the address of the original")
	}
	write(t, owner, mem.Ptr()+9992, []uint64{42})
	if v := read[uint64](t, other, there.Ptr()+9992, 1)[0]; v != 42 {
		t.Errorf("the import shows %d", v)
	}
	if _, err := there.ExportFD(); !errors.Is(err, mscclgo.ErrUnsupported) {
		t.Errorf("export of an import: %v", err)
	}
	if base, size, err := other.Range(there.Ptr()+777, 1); base != there.Ptr() || size != mem.Size() || err != nil {
		t.Errorf("range of an import: %#x, %d, %v", base, size, err)
	}
	must(t, mem.Free(), mem.Free())
	if v := read[uint64](t, other, there.Ptr()+9992, 1)[0]; v != 42 {
		t.Errorf("after the original was freed the import shows %d", v)
	}
	must(t, there.Free(), there.Free())
	if _, err := mem.ExportFD(); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("export of freed memory: %v", err)
	}
	if _, _, err := owner.Range(mem.Ptr(), 1); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("range of freed memory: %v", err)
	}
	if err := unix.Ftruncate(fd, 0); err == nil {
		t.Error("the memory can be shrunk through its descriptor")
	}
}

func TestDescriptorsOfStrangers(t *testing.T) {
	d := open(t)
	mem := alloc(t, d, 4096)
	fd, err := mem.ExportFD()
	must(t, err)
	defer unix.Close(fd)
	for _, size := range []uint64{0, 1, 8192, 1 << 63} {
		if _, err := d.ImportFD(fd, size); !errors.Is(err, mscclgo.ErrInvalid) {
			t.Errorf("import with size %d: %v", size, err)
		}
	}
	soft, err := unix.MemfdCreate("soft", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	must(t, err, unix.Ftruncate(soft, 4096))
	defer unix.Close(soft)
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, make([]byte, 4096), 0o600))
	file, err := os.Open(path)
	must(t, err)
	defer file.Close()
	for what, fd := range map[string]int{"memory that can shrink": soft, "a file": int(file.Fd()), "nothing": -1} {
		if _, err := d.ImportFD(fd, 4096); !errors.Is(err, mscclgo.ErrInvalid) {
			t.Errorf("import of %s: %v", what, err)
		}
	}
	if _, _, err := d.IPCHandle(mem.Ptr()); !errors.Is(err, mscclgo.ErrUnsupported) {
		t.Errorf("IPC handle: %v", err)
	}
	if _, err := d.OpenIPC([64]byte{}, 1); !errors.Is(err, mscclgo.ErrUnsupported) {
		t.Errorf("open an IPC handle: %v", err)
	}
}

func TestMemoryLimit(t *testing.T) {
	t.Setenv("MSCCLGO_EMU_MEMORY", "1048576")
	d := open(t)
	a := alloc(t, d, 1<<19)
	if free, total, err := d.MemoryInfo(); free != 1<<19 || total != 1<<20 || err != nil {
		t.Errorf("memory: %d of %d, %v", free, total, err)
	}
	for _, size := range []uint64{1<<19 + 1, 1 << 40} {
		if _, err := d.Alloc(size); !errors.Is(err, mscclgo.ErrSystem) {
			t.Errorf("%d bytes too much: %v", size, err)
		}
	}
	if _, err := d.Alloc(1<<64 - 1); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("all the bytes there are: %v", err)
	}
	must(t, a.Free())
	alloc(t, d, 1<<20)
}

func TestHostMemory(t *testing.T) {
	d := open(t)
	host, err := d.AllocHost(10001)
	must(t, err)
	testcmp.Equal(t, "new host memory", host.Bytes(), make([]byte, 10001))
	s := stream(t, d)
	must(t, s.Fill(host.Ptr()+1, 7, 10000), s.Synchronize(deadline(t)))
	if host.Bytes()[0] != 0 || host.Bytes()[10000] != 7 {
		t.Error("the host does not see what the stream filled")
	}
	must(t, host.Free(), host.Free())
}

// TestAccess reaches one device's memory from another and frees it meanwhile.
func TestAccess(t *testing.T) {
	a, b := open(t), open(t)
	await := kernelOf(t, load(t, b, streamSource), "await")
	mem := alloc(t, a, 4096)
	write(t, a, mem.Ptr(), make([]uint64, 2))
	must(t, b.Access(a, mem.Ptr(), 8), b.Access(a, mem.Ptr()+8, 8), a.Access(a, mem.Ptr(), 8))
	testerr.Expect(t, b.Access(a, 8, 8), mscclgo.ErrInvalid)
	if base, _, err := b.Range(mem.Ptr()+8, 1); base != mem.Ptr() || err != nil {
		t.Errorf("range: %#x, %v", base, err)
	}
	s := stream(t, b)
	must(t, s.Launch(await, shape(1, 64), pack(mem.Ptr(), uint64(1), mem.Ptr()+8)))
	must(t, mem.Free())
	testerr.Check(t, b.CopyFromHost(mem.Ptr(), []byte{1}))
	must(t, s.Synchronize(deadline(t)))
	if _, _, err := b.Range(mem.Ptr(), 1); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("range of freed memory: %v", err)
	}
}

// TestFreedMemory uses memory that is gone in every way there is. The stream or the call
// fails, and not the process.
func TestFreedMemory(t *testing.T) {
	d := open(t)
	own := alloc(t, d, 4096).Ptr()
	m, err := d.Alloc(4096)
	must(t, err)
	gone := m.Ptr()
	for name, queue := range map[string]func(s backend.Stream) error{
		"copy 8 bytes":     func(s backend.Stream) error { return s.Copy(own, gone, 8) },
		"fill 8 bytes":     func(s backend.Stream) error { return s.Fill(gone, 1, 8) },
		"write a value":    func(s backend.Stream) error { return s.WriteValue64(gone, 1) },
		"add to the word":  func(s backend.Stream) error { return s.Add64(gone, 1) },
		"exchange the":     func(s backend.Stream) error { return s.Exchange64(gone, 1, own) },
		"what the word":    func(s backend.Stream) error { return s.Exchange64(own, 1, gone) },
		"wait for a value": func(s backend.Stream) error { return s.WaitValue64(gone, 1, true) },
	} {
		s := stream(t, d)
		must(t, s.BeginCapture(), queue(s))
		g, err := s.EndCapture()
		must(t, err)
		defer func() {
			must(t, g.Launch(s))
			testerr.Expect(t, s.Synchronize(deadline(t)), mscclgo.ErrSystem, name, "illegal memory access")
		}()
	}
	must(t, m.Free())
	testerr.Expect(t, d.CopyToHost(make([]byte, 8), gone), mscclgo.ErrSystem, "illegal memory access")
	testerr.Expect(t, d.CopyFromHost(gone, make([]byte, 8)), mscclgo.ErrSystem, "illegal memory access")
	s := stream(t, d)
	q := s.Native()
	for _, op := range []native.Op{native.Write, native.Store} {
		f := native.Failure{Op: op, Code: nativetest.Do(q, op, gone, own, 8), Dst: gone, Src: own, Bytes: 8}
		if f.Code == 0 {
			t.Errorf("operation %d of a thread in C succeeded", op)
		}
		testerr.Expect(t, s.NativeError(f), mscclgo.ErrSystem, "illegal memory access")
	}
}

func TestDevices(t *testing.T) {
	t.Setenv("MSCCLGO_EMU_DEVICES", "3")
	infos, err := emu.Driver().List()
	must(t, err)
	if len(infos) != 3 || infos[2].Name != "emu:2" || infos[0].UUID == infos[1].UUID {
		t.Errorf("devices: %+v", infos)
	}
	again, err := emu.Driver().List()
	must(t, err)
	if again[1].UUID != infos[1].UUID {
		t.Error("a device changes its UUID")
	}
	d := open(t)
	if !d.CanAccess(infos[2].UUID) || d.CanAccess([16]byte{1}) {
		t.Error("a device reaches others of its host, and no others")
	}
	if _, err := emu.Driver().Open(3); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("open of a device that is not there: %v", err)
	}
	for _, bad := range []string{"x", "-1", "65"} {
		t.Setenv("MSCCLGO_EMU_DEVICES", bad)
		if _, err := emu.Driver().List(); !errors.Is(err, mscclgo.ErrInvalid) {
			t.Errorf("%s devices: %v", bad, err)
		}
	}
	t.Setenv("MSCCLGO_EMU_DEVICES", "0")
	if infos, err := emu.Driver().List(); len(infos) != 0 || err != nil {
		t.Errorf("no devices: %v, %v", infos, err)
	}
}

// TestZeros writes and fills with zeros, at any alignment. Pages that were never written take no memory
// afterwards either. Pages that were written keep their place, as pages that a NIC has registered must.
// Nothing beside the zeros changes.
func TestZeros(t *testing.T) {
	d := open(t)
	const size = 8 << 20
	for name, empty := range map[string]func(at, n uint64) error{
		"copy from the host": func(at, n uint64) error { return d.CopyFromHost(at, make([]byte, n)) },
		"fill": func(at, n uint64) error {
			s, err := d.NewStream()
			must(t, err)
			defer s.Close()
			return errors.Join(s.Fill(at, 0, n), s.Synchronize(t.Context()))
		},
	} {
		for _, c := range []struct{ at, n uint64 }{{0, size}, {4096, size / 2}, {5, size - 9}, {100, 70_000}, {3, 200}, {4000, 65_536}, {4 << 20, 64 << 10}, {4<<20 + 1, 2 << 20}} {
			mem := alloc(t, d, size)
			fd, err := mem.ExportFD()
			must(t, err)
			defer unix.Close(fd)
			taken := func() int64 {
				var stat unix.Stat_t
				must(t, unix.Fstat(fd, &stat))
				return stat.Blocks * 512
			}
			want := slices.Concat(bytes.Repeat([]byte{0xa5}, 1<<20), make([]byte, size-1<<20)) // as new memory is
			for _, at := range []uint64{100_000, 1<<20 + 5, 5 << 20, size - 3000} {
				must(t, d.CopyFromHost(mem.Ptr()+at, bytes.Repeat([]byte{7}, 3000)))
				copy(want[at:], bytes.Repeat([]byte{7}, 3000))
			}
			before := taken()
			must(t, empty(mem.Ptr()+c.at, c.n))
			if after := taken(); c.n >= 64<<10 && after != before {
				t.Errorf("%s of %d zeros at %d: the memory took %d bytes, and then %d", name, c.n, c.at, before, after)
			}
			clear(want[c.at : c.at+c.n])
			got := make([]byte, size)
			must(t, d.CopyToHost(got, mem.Ptr()))
			testcmp.Equal(t, fmt.Sprintf("the memory behind a %s of %d zeros at %d", name, c.n, c.at), got, want)
		}
	}
	// What is not of zeros alone is copied, whole.
	mem := alloc(t, d, size)
	for _, last := range []int{1 << 20, 1<<20 - 4096, 1<<20 + 1} {
		data := make([]byte, last+1)
		data[last] = 9
		must(t, d.CopyFromHost(mem.Ptr()+1, data))
		if got := read[byte](t, d, mem.Ptr()+1+uint64(last), 1); got[0] != 9 {
			t.Errorf("the last byte of %d is %d", len(data), got[0])
		}
	}
}

// TestRangeOfSameNumber finds memory by a pointer that another Device of the same number has allocated,
// and finds no memory of another device.
func TestRangeOfSameNumber(t *testing.T) {
	owner, d := open(t), open(t)
	m := alloc(t, owner, 4096)
	if base, size, err := d.Range(m.Ptr()+8, 8); base != m.Ptr() || size != 4096 || err != nil {
		t.Errorf("%#x, %d, %v", base, size, err)
	}
	fd, err := d.Export(m.Ptr(), 4096)
	must(t, err, unix.Close(fd))
	other, err := emu.Driver().Open(1)
	must(t, err)
	defer other.Close()
	if _, _, err := other.Range(m.Ptr(), 8); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("on another device: %v", err)
	}
	must(t, m.Free())
	if _, _, err := d.Range(m.Ptr(), 8); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("freed: %v", err)
	}
}
