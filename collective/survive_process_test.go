package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testproc"
)

func TestMain(m *testing.M) { testproc.Main(m, survivorMain) }

// survivorMain is a process that is a rank of one group after the other, until it is told to stop.
func survivorMain() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	stop, cancel := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer cancel()
	id, err := bootstrap.ParseUniqueID(os.Getenv(bootstrap.EnvID))
	if err != nil {
		log.Fatal(err)
	}
	member, err := bootstrap.NewMember(bootstrap.Options{ID: id, Timeout: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	device, err := gpu.Open(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	s := &survivor{}
	for {
		fmt.Println("comes")
		boot, err := member.Next(ctx)
		if err == nil {
			var kept bool
			kept, err = s.enter(ctx, boot, device, communicator.Options{Scratch: 1 << 20})
			switch {
			case err == nil:
				fmt.Printf("generation %d: rank %d of %d, its graph is right: %v\n", member.Generation(), s.comm.Rank(), s.comm.Size(), kept)
				err = s.goesOn(ctx, stop, member.Generation())
			case s.comm != nil:
				s.comm.Abort(err)
			}
			if err == nil {
				fmt.Println("every element was right")
				if err := errors.Join(s.close(ctx), boot.Close(), member.Close(), device.Close()); err != nil {
					log.Fatal(err)
				}
				return
			}
			boot.Abort(err)
			boot.Close()
		}
		if wrong := (*wrongElement)(nil); ctx.Err() != nil || errors.As(err, &wrong) {
			log.Fatal(err)
		}
		fmt.Println("lost the group:", err)
		if err := s.scribble(); err != nil {
			log.Fatal(err)
		}
	}
}

// goesOn works until a rank is told to stop.
func (s *survivor) goesOn(ctx, stop context.Context, generation uint64) error {
	last, said := time.Now(), 0
	halt := make(chan os.Signal, 1)
	signal.Notify(halt, syscall.SIGUSR1)
	defer signal.Stop(halt)
	for {
		select {
		case <-halt: // where no kernel of its own runs, whose stores in the others' buffers nothing fences off
			if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
				return err
			}
		default:
		}
		mine := []byte("go on")
		if stop.Err() != nil {
			mine = []byte("stop")
		}
		wishes, err := s.comm.AllGather(ctx, mine)
		if err != nil {
			return err
		}
		for _, wish := range wishes {
			if string(wish) == "stop" {
				return nil
			}
		}
		if err := s.works(ctx); err != nil {
			return err
		}
		if said < 3 || time.Since(last) > time.Second {
			fmt.Printf("works in generation %d (%d)\n", generation, said)
			last = time.Now()
			said++
		}
	}
}

// scribble writes to all that this rank has mapped of its peers' runners in a group that it has left. The peers
// may be in the next group already, and must not see it.
func (s *survivor) scribble() error {
	if s.runner == nil {
		return nil
	}
	for _, m := range s.runner.own {
		for rank, peer := range m.shared.Memories {
			b := peer.Buffer()
			if rank == s.comm.Rank() || b == nil {
				continue
			}
			part, err := b.Slice(0, min(b.Size(), 1<<20))
			if err != nil {
				return err
			}
			if err := gpu.CopyIn(part, bytes.Repeat([]byte{0xff}, int(part.Size()))); err != nil {
				return err
			}
			fmt.Println("scribbled")
		}
	}
	return nil
}

// TestSurvivors has a rank of three processes killed again and again, and a new one come in its place. The
// graphs of the others live on. Then one is stopped, left out, and goes on.
func TestSurvivors(t *testing.T) {
	const n = 3
	scene := testproc.New(t)
	server := testerr.Must(bootstrap.NewElastic("127.0.0.1:0", bootstrap.ElasticOptions{Min: n, Max: n}))(t)
	defer server.Close()
	start := func(i int) *testproc.Process {
		return scene.Start([]string{bootstrap.EnvID + "=" + server.ID().String()}, testdev.Name(t, i))
	}
	var ranks []*testproc.Process
	for i := range n {
		ranks = append(ranks, start(i))
	}
	generation := 0
	// next waits until the processes work in the next group, in which the graphs of survivors are right.
	next := func(survivors ...int) {
		t.Helper()
		for _, p := range ranks {
			says(t, ranks, p, fmt.Sprintf("works in generation %d (0)", generation+1))
		}
		generation++
		for _, i := range survivors {
			says(t, ranks, ranks[i], fmt.Sprintf("generation %d: rank %d of %d, its graph is right: true", generation, rankIn(ranks[i], generation), n))
		}
	}
	next()
	for victim := range n {
		ranks[victim].Cmd.Process.Kill()
		<-ranks[victim].Ended
		ranks[victim] = start(victim)
		next((victim+1)%n, (victim+2)%n)
	}

	spare := start(1)
	spare.Says("comes")
	stopped := ranks[1]
	testerr.Check(t, stopped.Cmd.Process.Signal(syscall.SIGUSR1))
	ranks[1] = spare
	next(0, 2)
	testerr.Check(t, stopped.Cmd.Process.Signal(syscall.SIGCONT))
	says(t, ranks, stopped, "scribbled")
	for _, p := range ranks {
		seen := strings.Count(p.Stdout.String(), fmt.Sprintf("works in generation %d", generation))
		says(t, ranks, p, fmt.Sprintf("works in generation %d (%d)", generation, seen+1))
	}
	// It comes again, in place of the one that took its.
	spare.Cmd.Process.Kill()
	<-spare.Ended
	ranks[1] = stopped
	next(0, 2)
	for _, p := range ranks {
		p.Cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, p := range ranks {
		p.End(0)
		if !strings.Contains(p.Stdout.String(), "every element was right") {
			t.Errorf("a rank says %s", p.Stdout.String())
		}
	}
}

// rankIn returns the rank that a process says it has in a generation.
func rankIn(p *testproc.Process, generation int) (rank int) {
	_, rest, _ := strings.Cut(p.Stdout.String(), fmt.Sprintf("generation %d: ", generation))
	fmt.Sscanf(rest, "rank %d", &rank)
	return rank
}

// says waits until a process says something, while none of its group ends.
func says(t *testing.T, group []*testproc.Process, p *testproc.Process, text string) {
	t.Helper()
	for start := time.Now(); !strings.Contains(p.Stdout.String(), text); time.Sleep(10 * time.Millisecond) {
		for _, other := range append([]*testproc.Process{p}, group...) {
			select {
			case <-other.Ended:
				t.Fatalf("a process has ended: %s%s", other.Stdout.String(), other.Stderr.String())
			default:
			}
		}
		if time.Since(start) > 2*time.Minute {
			for i, other := range group {
				t.Logf("process %d: %s%s", i, other.Stdout.String(), other.Stderr.String())
			}
			t.Fatalf("it does not say %q: %s%s", text, p.Stdout.String(), p.Stderr.String())
		}
	}
}
