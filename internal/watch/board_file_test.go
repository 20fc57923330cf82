package watch

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo/internal/procfs"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestReadBoard reads a board of two of three ranks, and files that are not boards.
func TestReadBoard(t *testing.T) {
	now := time.Now()
	s := testerr.Must(CreateBoard(2, 3, 77))(t)
	defer s.Close()
	file := s.File
	s.Report(0, (&Status{Process: uint32(os.Getpid()), Namespace: procfs.Namespace(), Host: HostName(), Call: 5}).Encode())
	s.Beat(0, uint64(now.Add(-time.Minute).UnixMilli()))
	s.Report(1, (&Status{Process: uint32(os.Getpid()), Namespace: procfs.Namespace(), Host: "another", Call: 6}).Encode())
	s.Beat(1, Gone)
	j := testerr.Must(ReadBoard(file))(t)
	if j.ID != 77 || j.Started.Sub(now).Abs() > time.Minute || len(j.Ranks) != 3 {
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
	s.head.version--
	if _, err := ReadBoard(file); err == nil {
		t.Error("a board of another version is read")
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
		if j, err := ReadBoard(file); err == nil && len(j.Ranks) != 3 {
			t.Fatalf("%d ranks", len(j.Ranks))
		}
	}

	plain := testerr.Must(os.Create(filepath.Join(t.TempDir(), "board")))(t)
	defer plain.Close()
	testerr.Check(t, plain.Truncate(int64(boardBytes(2, 3))))
	fd := testerr.Must(unix.MemfdCreate("board", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))(t)
	loose := os.NewFile(uintptr(fd), "board")
	defer loose.Close()
	for _, f := range []*os.File{plain, loose} {
		if _, err := ReadBoard(f); err == nil {
			t.Errorf("%s is read", f.Name())
		}
	}
}
