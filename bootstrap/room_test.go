package bootstrap

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/handshake"
)

// Rank 0, in a process of its own, may open so many descriptors more: all ranks are told before the group forms, unless
// it needs no more.
func TestFewDescriptorsAtTheRendezvous(t *testing.T) {
	const childEnv = "BOOTSTRAP_TEST_ROOM"
	if text := os.Getenv(childEnv); text != "" {
		id, more, _ := strings.Cut(text, " ")
		rankZeroWithFew(t, id, more)
		return
	}
	probe := rendezvous(t, quiet)
	probe.Close()
	for more, want := range map[int]string{2: "a group of 4 ranks needs", 5: "a group of 4 ranks needs", 10: "a group of 4 ranks needs", 11: ""} {
		t.Run(fmt.Sprint(more), func(t *testing.T) {
			id, err := NewUniqueID(probe.ID().Addr())
			if err != nil {
				t.Fatal(err)
			}
			child := exec.Command(os.Args[0], "-test.run=^TestFewDescriptorsAtTheRendezvous$", "-test.v")
			child.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", childEnv, id.String(), more))
			type end struct {
				out []byte
				err error
			}
			ended := make(chan end, 1)
			go func() {
				out, err := child.CombinedOutput()
				ended <- end{out, err}
			}()
			var opts []Options
			for rank := 1; rank < 4; rank++ {
				opts = append(opts, Options{Rank: rank, Size: 4, ID: id, Timeout: 30 * time.Second})
			}
			start := time.Now()
			bs, errs := connectAll(testContext(t), opts)
			closeAll(bs)
			zero := <-ended
			if zero.err != nil || want != "" && !strings.Contains(string(zero.out), "system error: rank 0") {
				t.Errorf("rank 0: %v\n%s", zero.err, zero.out)
			}
			if want == "" {
				if err := errors.Join(errs...); err != nil {
					t.Error(err)
				}
				return
			}
			wantCulprit(t, errs, mscclgo.ErrRemote, 0)
			for _, err := range errs {
				wantError(t, err, mscclgo.ErrRemote, want, "ulimit -n")
			}
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// rankZeroWithFew connects as rank 0 of 4 with so many descriptors more than there are.
func rankZeroWithFew(t *testing.T, text, more string) {
	id, err := ParseUniqueID(text)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0") // the poller has descriptors of its own from then on
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	var n uint64
	fmt.Sscan(more, &n)
	few := uint64(handshake.Descriptors()) + n
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: few, Max: few}); err != nil {
		t.Fatal(err)
	}
	b, err := Connect(testContext(t), Options{Rank: 0, Size: 4, ID: id, Logger: quiet})
	t.Log(err)
	b.Close()
}

// The descriptors of rank 0 run out after it has opened the rendezvous, which can accept nobody, not even rank 0.
func TestRendezvousRunsShort(t *testing.T) {
	noLeaks(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	id := newID([]string{"127.0.0.1"}, uint16(ln.Addr().(*net.TCPAddr).Port), true)
	r := serveRendezvous(&starved{Listener: ln}, id, quiet)
	defer r.Close()
	start := time.Now()
	_, _, err = join(testContext(t), Options{Size: 2, ID: id, Logger: quiet}, r)
	wantError(t, err, mscclgo.ErrSystem, "rank 0, which holds the rendezvous, has accepted no rank for 1s", "too many open files")
	if took := time.Since(start); took > 4*time.Second {
		t.Errorf("it took %v", took)
	}
}

// Rank 0 opens the rendezvous and cannot come to it.
func TestRankZeroCannotJoin(t *testing.T) {
	noLeaks(t)
	id := freeID(t)
	_, errs := connectAll(testContext(t), []Options{
		{Rank: 0, Size: 3, ID: id, Interface: "no-such-interface"},
		{Rank: 1, Size: 3, ID: id},
		{Rank: 2, Size: 3, ID: id},
	})
	wantError(t, errs[0], mscclgo.ErrInvalid, "no-such-interface")
	wantCulprit(t, errs[1:], mscclgo.ErrRemote, 0)
}
