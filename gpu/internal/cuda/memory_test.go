package cuda

import (
	"bytes"
	"errors"
	"regexp"
	"sync"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

func TestInfo(t *testing.T) {
	d := openDevice(t, 0)
	i := d.Info()
	t.Logf("%+v", i)
	if i.Name != "cuda:0" || i.Model == "" || i.UUID == [16]byte{} || i.Multiprocessors <= 0 ||
		i.MaxBlocksPerSM <= 0 || i.MaxThreadsPerBlock < 512 || i.MaxSharedPerBlock < 48<<10 || i.WarpSize != 32 ||
		i.TotalMemory < 1<<30 || i.L2Bytes <= 0 || i.MaxThreadsPerSM < 512 || i.MemoryGranularity == 0 ||
		i.DriverVersion == "" {
		t.Errorf("implausible: %+v", i)
	}
	if !regexp.MustCompile(`^sm_\d+$`).MatchString(i.Arch) {
		t.Errorf("architecture %q", i.Arch)
	}
	if !regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.0$`).MatchString(i.PCIBusID) {
		t.Errorf("PCI bus id %q", i.PCIBusID)
	}
	free, total, err := d.MemoryInfo()
	check(t, err)
	if free == 0 || free > total || total > i.TotalMemory {
		t.Errorf("%d of %d bytes free, the device has %d", free, total, i.TotalMemory)
	}
	if !d.CanAccess(i.UUID) || d.CanAccess([16]byte{1, 2, 3}) {
		t.Error("CanAccess must hold for the device itself and not for one that is not visible")
	}
}

func TestOpenNoSuchDevice(t *testing.T) {
	openDevice(t, 0)
	for _, n := range []int{-1, 1000} {
		_, err := Driver().Open(n)
		testerr.Expect(t, err, mscclgo.ErrInvalid, "no such device", "cuda:0")
	}
}

func TestCopyAndFill(t *testing.T) {
	d := openDevice(t, 0)
	const n = 3<<20 + 1
	a, b, s := alloc(t, d, n), alloc(t, d, n), newStream(t, d)
	if a.Size() < n || a.Size()%d.Info().MemoryGranularity != 0 {
		t.Errorf("allocated %d bytes for %d", a.Size(), n)
	}
	want := randomBytes(n)
	check(t, d.CopyFromHost(a.Ptr(), want))
	check(t, s.Copy(b.Ptr(), a.Ptr(), n))
	check(t, s.Fill(b.Ptr()+7, 0x5c, 1001))
	finish(t, s)
	for i := range 1001 {
		want[7+i] = 0x5c
	}
	testcmp.Equal(t, "copied and filled memory", readBack(t, d, b.Ptr(), n), want)
	base, size, err := d.Range(b.Ptr()+12345, 1)
	check(t, err)
	if base != b.Ptr() || size != b.Size() {
		t.Errorf("range is %#x+%d, want %#x+%d", base, size, b.Ptr(), b.Size())
	}
	_, _, err = d.Range(1<<20, 1)
	testerr.Expect(t, err, mscclgo.ErrInvalid, "find the allocation", "cuda:0")
}

func TestHostMemory(t *testing.T) {
	d := openDevice(t, 0)
	s := newStream(t, d)
	h := must(d.AllocHost(4097))(t)
	closeAtEnd(t, h.Free)
	testcmp.Equal(t, "new pinned memory", h.Bytes(), make([]byte, 4097))
	m := alloc(t, d, 4097)
	want := randomBytes(4097)
	copy(h.Bytes(), want)
	check(t, s.Copy(m.Ptr(), h.Ptr(), 4097))
	finish(t, s)
	testcmp.Equal(t, "the copy of pinned memory", readBack(t, d, m.Ptr(), 4097), want)
}

func TestOutOfMemory(t *testing.T) {
	d := openDevice(t, 0)
	tooMuch := 2 * d.Info().TotalMemory
	_, err := d.Alloc(tooMuch)
	testerr.Expect(t, err, mscclgo.ErrSystem, "OUT_OF_MEMORY", "allocate", "bytes are free")
	_, err = d.allocPlain(tooMuch)
	testerr.Expect(t, err, mscclgo.ErrSystem, "OUT_OF_MEMORY", "allocate", "bytes are free")
	_, err = d.AllocHost(1 << 50)
	testerr.Expect(t, err, mscclgo.ErrSystem, "OUT_OF_MEMORY", "pinned host memory", "the host's memory")
	if _, err = d.Alloc(1 << 62); err == nil {
		t.Error("allocated 4 EiB")
	}
	_, err = d.Alloc(1<<64 - 1)
	testerr.Expect(t, err, mscclgo.ErrInvalid)
	alloc(t, d, 1) // still usable
}

func TestFreeReturnsMemory(t *testing.T) {
	d := openDevice(t, 0)
	cycle := func() {
		m := must(d.Alloc(64 << 20))(t)
		check(t, m.Free())
		check(t, m.Free())
		if v, ok := m.(*virtual); ok {
			_, err := v.ExportFD()
			testerr.Expect(t, err, mscclgo.ErrInvalid, "freed")
		}
	}
	cycle()
	before, _, err := d.MemoryInfo()
	check(t, err)
	for range 50 {
		cycle()
	}
	after, _, err := d.MemoryInfo()
	check(t, err)
	if after+(1<<30) < before { // others may use the GPU too; a leak would be 3 GiB
		t.Errorf("%d bytes free before, %d after", before, after)
	}
}

// TestManyOpens uses one GPU through several opens at once, from goroutines
// that have no thread of their own.
func TestManyOpens(t *testing.T) {
	first := openDevice(t, 0)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			d, err := Driver().Open(0)
			if err != nil {
				t.Error(err)
				return
			}
			defer d.Close()
			for range 10 {
				m, err := d.Alloc(1 << 16)
				if err != nil {
					t.Error(err)
					return
				}
				want, got := randomBytes(1<<16), make([]byte, 1<<16)
				testerr.Report(t, d.CopyFromHost(m.Ptr(), want))
				testerr.Report(t, first.Access(d, m.Ptr(), m.Size()))
				testerr.Report(t, first.CopyToHost(got, m.Ptr()))
				testcmp.Equal(t, "the memory read through another device", got, want)
				testerr.Report(t, m.Free())
			}
		})
	}
	group.Wait()
}

// TestObjectsOutliveDevice closes a device before what was made on it.
func TestObjectsOutliveDevice(t *testing.T) {
	d := openDevice(t, 0)
	m, s := alloc(t, d, 4096), newStream(t, d)
	check(t, d.Close())
	check(t, s.Fill(m.Ptr(), 1, 4096))
	finish(t, s)
	check(t, m.Free())
	check(t, s.Close())
	_, err := d.NewStream()
	testerr.Expect(t, err, mscclgo.ErrInvalid, "closed")
}

// TestPeerFromManyRanks lets many goroutines ask at once for access to the same
// memory and to others, as the ranks of one process do.
func TestPeerFromManyRanks(t *testing.T) {
	a, b := openDevice(t, 0), openDevice(t, 1)
	if !a.CanAccess(b.Info().UUID) {
		t.Skip("cuda:0 cannot reach cuda:1")
	}
	const n, ranks = 1 << 20, 4
	var there, here []backend.Memory
	for range ranks {
		there, here = append(there, alloc(t, b, n)), append(here, alloc(t, a, n))
	}
	var wg sync.WaitGroup
	for range ranks {
		wg.Go(func() {
			for i := range ranks {
				testerr.Report(t, errors.Join(a.Access(b, there[i].Ptr(), n), b.Access(a, here[i].Ptr(), n)))
			}
		})
	}
	wg.Wait()
	add := must(loadKernels(t, a).Kernel("add"))(t)
	s := newStream(t, a)
	for _, m := range there {
		check(t, b.CopyFromHost(m.Ptr(), make([]byte, n)))
		check(t, s.Launch(add, blocks(n/4/256, 256), packed(t, add, m.Ptr(), n/4, 0x01010101)))
		finish(t, s)
		testcmp.Equal(t, "the memory of cuda:1 after cuda:0 wrote it", readBack(t, b, m.Ptr(), n), bytes.Repeat([]byte{1}, n))
	}
}

func TestPeer(t *testing.T) {
	a, b := openDevice(t, 0), openDevice(t, 1)
	if !a.CanAccess(b.Info().UUID) {
		t.Skip("cuda:0 cannot reach cuda:1")
	}
	const n = 1 << 20
	plainMemory := must(b.allocPlain(n))(t)
	closeAtEnd(t, plainMemory.Free)
	for _, m := range []interface{ Ptr() uint64 }{alloc(t, b, n), plainMemory} {
		for range 2 { // again does no harm
			check(t, a.Access(b, m.Ptr(), n))
		}
		check(t, b.CopyFromHost(m.Ptr(), make([]byte, n)))
		s := newStream(t, a)
		add := must(loadKernels(t, a).Kernel("add"))(t)
		check(t, s.Launch(add, blocks(n/4/256, 256), packed(t, add, m.Ptr(), n/4, 0x01010101)))
		finish(t, s)
		testcmp.Equal(t, "the memory of cuda:1 after cuda:0 wrote it", readBack(t, b, m.Ptr(), n), bytes.Repeat([]byte{1}, n))
	}
}
