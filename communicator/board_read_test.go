package communicator

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo/internal/watch"
)

// TestReadBoard reads a board of two of three ranks, and files that are not boards.
func TestReadBoard(t *testing.T) {
	file, err := boardFile(2, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := readBoard(file); err == nil {
		t.Error("a board that is not ready is read")
	}
	s := &sharedBoard{}
	if err := s.attach(file, 2, 3); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	now := time.Now()
	*s.head = boardHead{version: boardVersion, ranks: 2, group: 3, job: 77, started: uint64(now.UnixMilli())}
	s.report(0, (&watch.Status{Process: uint32(os.Getpid()), Namespace: pidNamespace(), Host: hostName(), Call: 5}).Encode())
	s.beat(0, uint64(now.Add(-time.Minute).UnixMilli()))
	s.report(1, (&watch.Status{Process: uint32(os.Getpid()), Namespace: pidNamespace(), Host: "another", Call: 6}).Encode())
	s.beat(1, gone)
	j, err := readBoard(file)
	if err != nil {
		t.Fatal(err)
	}
	if j.ID != 77 || j.Started.UnixMilli() != now.UnixMilli() || len(j.Ranks) != 3 {
		t.Errorf("the job is %+v", j)
	}
	if r := j.Ranks[0]; r.Status == nil || r.Call != 5 || r.Silent < time.Minute || r.Stopped || !j.Begun[0] || j.Heard[0] < time.Minute {
		t.Errorf("rank 0 is %+v", r)
	}
	if r := j.Ranks[1]; r.Status == nil || !r.Left || r.Silent != 0 || j.Heard[1] != 0 {
		t.Errorf("rank 1 is %+v", r)
	}
	if r := j.Ranks[2]; r.Status != nil || r.Silent != 0 || j.Begun[2] {
		t.Errorf("rank 2 is %+v", r)
	}
	// What a rank that lies writes does no harm.
	random := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		for i := range 40 {
			s.mapping[random.IntN(len(s.mapping))] = byte(random.Uint32())
			s.mapping[len(s.mapping)-1-i*50] = byte(random.Uint32())
			s.mapping[random.IntN(64)] = byte(random.Uint32())
		}
		if random.IntN(2) == 0 {
			s.head.version, s.head.ranks, s.head.group = boardVersion, 2, 3
		}
		if j, err := readBoard(file); err == nil && len(j.Ranks) != 3 {
			t.Fatalf("%d ranks", len(j.Ranks))
		}
	}

	plain, err := os.Create(filepath.Join(t.TempDir(), "board"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if err := plain.Truncate(int64(boardBytes(2, 3))); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.MemfdCreate("board", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	loose := os.NewFile(uintptr(fd), "board")
	defer loose.Close()
	for _, f := range []*os.File{plain, loose} {
		if _, err := readBoard(f); err == nil {
			t.Errorf("%s is read", f.Name())
		}
	}
}
