package bootstrap_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/test/testproc"
)

func TestMain(m *testing.M) { testproc.Main(m, rankMain) }

// rankMain is one rank's program: it connects, exchanges messages for a while, and closes.
// It prints what became of it, and when.
func rankMain() {
	say := func(format string, args ...any) {
		fmt.Printf("%d "+format+"\n", append([]any{time.Now().UnixMicro()}, args...)...)
	}
	say("begun")
	env, err := bootstrap.FromEnv(os.LookupEnv)
	if err != nil {
		say("failed %v", err)
		return
	}
	env.Options.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if s := os.Getenv(patienceEnv); s != "" {
		patience, _ := time.ParseDuration(s)
		env.Options.Timeout = 4 * patience // the processes start one after the other
		collectives(ctx, env.Options, patience, say)
		return
	}
	if file := os.Getenv(lossyEnv); file != "" {
		if err := lossyRank(ctx, env.Options, file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	b, err := bootstrap.Connect(ctx, env.Options)
	if err != nil {
		say("failed %v", err)
		return
	}
	say("connected")
	if err := exchange(ctx, b); err != nil {
		if b.Err() != nil {
			err = b.Err()
		}
		say("failed %v", err)
		return
	}
	// Ranks leave one by one, others stay.
	idle := time.Duration(rand.IntN(100)) * time.Millisecond
	if rand.IntN(2) == 0 {
		idle += 1500 * time.Millisecond
	}
	say("idle")
	select {
	case <-b.Done():
		say("failed %v", b.Err())
		return
	case <-time.After(idle):
	}
	say("leaving")
	b.Close()
	say("closed")
}

// patienceEnv holds how long a rank waits in each call, for ranks that make collective calls
// only.
const patienceEnv = "BOOTSTRAP_TEST_PATIENCE"

// With stopsEnv, rank 1 is stopped in the second call, while it waits for rank 9, which comes
// later.
const stopsEnv = "BOOTSTRAP_TEST_STOPS"

func collectives(ctx context.Context, o bootstrap.Options, patience time.Duration, say func(string, ...any)) {
	b, err := bootstrap.Connect(ctx, o)
	for i := 0; err == nil && i < 30; i++ {
		time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond)
		if os.Getenv(stopsEnv) != "" && i == 1 {
			switch o.Rank {
			case 1:
				time.AfterFunc(250*time.Millisecond, func() { syscall.Kill(os.Getpid(), syscall.SIGSTOP) })
			case 9:
				time.Sleep(500 * time.Millisecond)
			}
		}
		during, cancel := context.WithTimeout(ctx, patience)
		if i%2 == 0 {
			err = b.Barrier(during)
		} else {
			_, err = b.AllGather(during, make([]byte, 1000))
		}
		cancel()
	}
	if err != nil {
		say("failed %v", err)
		return // and the process ends, without Close
	}
	b.Close()
	say("closed")
}

// exchange makes calls of all kinds, the same on all ranks.
func exchange(ctx context.Context, b *bootstrap.Bootstrap) error {
	next, last := (b.Rank()+1)%b.Size(), (b.Rank()+b.Size()-1)%b.Size()
	for round := range 20 {
		time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond)
		switch round % 3 {
		case 0:
			if err := b.Barrier(ctx); err != nil {
				return err
			}
		case 1:
			if _, err := b.AllGather(ctx, make([]byte, 1000)); err != nil {
				return err
			}
		case 2:
			if err := b.Send(ctx, next, 1, make([]byte, 10000)); err != nil {
				return err
			}
			if _, err := b.Recv(ctx, last, 1); err != nil {
				return err
			}
		}
	}
	return b.Barrier(ctx)
}

// A rank is killed at any moment from its first instruction to the end of its Close. Each
// survivor that has not left in good order names it, soon, and nothing is left. With
// BOOTSTRAP_KILLS=100 in the environment there are as many runs, and soon is a second.
func TestKillAnyRankAtAnyMoment(t *testing.T) {
	runs, soon := 4, 10*time.Second // on a loaded machine
	if s := os.Getenv("BOOTSTRAP_KILLS"); s != "" {
		runs, _ = strconv.Atoi(s)
		soon = time.Second
	}
	missed := 0
	for run := range runs {
		if !killOne(t, run, soon) {
			missed++
		}
	}
	if missed == runs && runs > 3 {
		t.Errorf("in none of %d runs was a rank killed in time", runs)
	}
	t.Logf("%d runs, in %d of which the rank had ended before it was killed", runs, missed)
}

// killOne is one run. It reports whether the rank was killed before it ended.
func killOne(t *testing.T, run int, soon time.Duration) bool {
	const size = 11 // rank 9 and 10 are below rank 1
	s := testproc.New(t)
	r := testproc.NewRendezvous(t)
	victim := rand.IntN(size)
	after := time.Duration(rand.IntN(250)) * time.Millisecond
	procs := make([]*testproc.Process, size)
	for rank := range procs {
		procs[rank] = s.Start(testproc.RankEnv(r.ID(), rank, size))
	}
	procs[victim].Says("begun")
	time.Sleep(after)
	procs[victim].Cmd.Process.Kill()
	killed := time.Now()
	<-procs[victim].Ended
	r.Internal().Ended(victim, "was killed")
	if strings.Contains(procs[victim].Stdout.String(), "closed") {
		for _, p := range procs {
			<-p.Ended
		}
		return false
	}
	_, state := lastWord(t, procs[victim])
	if os.Getenv("BOOTSTRAP_KILLS") != "" {
		t.Logf("run %d: rank %d was killed %v after it had begun (%s)", run, victim, after, state)
	}
	for rank, p := range procs {
		if rank == victim {
			continue
		}
		select {
		case <-p.Ended:
		case <-time.After(soon + 10*time.Second):
			t.Errorf("run %d: rank %d has not ended", run, rank)
			continue
		}
		at, word := lastWord(t, p)
		switch {
		case word == "closed":
		case !strings.Contains(word, fmt.Sprintf("rank %d ", victim)):
			t.Errorf("run %d: rank %d was killed %v after it had begun (%s); rank %d says %q\n%s", run, victim, after, state, rank, word, p.Stderr.String())
		case at.Sub(killed) > soon:
			t.Errorf("run %d: rank %d was killed %v after it had begun (%s); rank %d says so %v later: %s\n%s", run, victim, after, state, rank, at.Sub(killed), word, p.Stderr.String())
		}
	}
	return true
}

// A rank is stopped at any moment, while the ranks connect or make collective calls. When
// the time of the others is up, all name it, whoever is first.
func TestStopAnyRankAtAnyMoment(t *testing.T) {
	const size = 11
	runs := 2
	if s := os.Getenv("BOOTSTRAP_KILLS"); s != "" {
		runs, _ = strconv.Atoi(s)
	}
	for run := range runs {
		s, r := testproc.New(t), testproc.NewRendezvous(t)
		victim := rand.IntN(size)
		after := time.Duration(rand.IntN(120)) * time.Millisecond
		procs := make([]*testproc.Process, size)
		for rank := range procs {
			procs[rank] = s.Start(append(testproc.RankEnv(r.ID(), rank, size), patienceEnv+"=3s"))
		}
		procs[victim].Says("begun")
		time.Sleep(after)
		procs[victim].Cmd.Process.Signal(syscall.SIGSTOP)
		for rank, p := range procs {
			if rank == victim {
				continue
			}
			select {
			case <-p.Ended:
			case <-time.After(time.Minute):
				t.Errorf("run %d: rank %d has not ended", run, rank)
				continue
			}
			if _, word := lastWord(t, p); word != "closed" && !regexp.MustCompile(fmt.Sprintf(`ranks? (\d+-)?%d\b`, victim)).MatchString(word) {
				t.Errorf("run %d: rank %d was stopped %v after it had begun; rank %d says %q\n%s", run, victim, after, rank, word, p.Stderr.String())
			}
		}
		procs[victim].Cmd.Process.Kill()
		<-procs[victim].Ended
	}
}

// A rank is stopped after it has told the others for whom it waits, and that one comes. It
// is the stopped rank that all name, though not one of them waits for it alone.
func TestStoppedWhileItWaited(t *testing.T) {
	const size, victim = 11, 1
	s, r := testproc.New(t), testproc.NewRendezvous(t)
	procs := make([]*testproc.Process, size)
	for rank := range procs {
		procs[rank] = s.Start(append(testproc.RankEnv(r.ID(), rank, size), patienceEnv+"=4s", stopsEnv+"=1"))
	}
	for rank, p := range procs {
		if rank == victim {
			continue
		}
		select {
		case <-p.Ended:
		case <-time.After(time.Minute):
			t.Errorf("rank %d has not ended", rank)
			continue
		}
		if _, word := lastWord(t, p); !regexp.MustCompile(`ranks? 1\b|peer 1\)`).MatchString(word) {
			t.Errorf("rank %d says %q\n%s", rank, word, p.Stderr.String())
		}
	}
	procs[victim].Cmd.Process.Kill()
	<-procs[victim].Ended
}

// lastWord returns what a process printed last, and when.
func lastWord(t *testing.T, p *testproc.Process) (time.Time, string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(p.Stdout.String()), "\n")
	stamp, word, _ := strings.Cut(lines[len(lines)-1], " ")
	micro, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		t.Errorf("a process says %q", p.Stdout.String())
	}
	return time.UnixMicro(micro), word
}

// The process that starts the ranks tells the rendezvous of one that ends before it gets there.
func TestEndedBeforeItCame(t *testing.T) {
	r := testproc.NewRendezvous(t)
	done := make(chan error)
	go func() {
		_, err := bootstrap.Connect(t.Context(), bootstrap.Options{Rank: 0, Size: 2, ID: r.ID()})
		done <- err
	}()
	time.Sleep(50 * time.Millisecond)
	r.Internal().Ended(1, "exited with code 3")
	err := <-done
	var e *mscclgo.Error
	if !errors.As(err, &e) || e.Kind != mscclgo.ErrRemote || e.Peer != 1 || !strings.Contains(err.Error(), "rank 1 exited with code 3") {
		t.Errorf("%v", err)
	}
}
