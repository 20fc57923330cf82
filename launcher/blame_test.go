package launcher

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// blameRank is one of three ranks. Rank 2 stays until it is ended. Rank 1 waits for it in
// vain, or in the case "itself" uses it wrongly and stays too. The ranks that do not stay
// exit with 3.
func blameRank(who string) {
	env, err := bootstrap.FromEnv(os.LookupEnv)
	if err != nil {
		panic(err)
	}
	rank := env.Options.Rank
	stays := rank == 2
	// Connect fails where rank 1 is ahead.
	boot, err := bootstrap.Connect(context.Background(), env.Options)
	if rank == 1 {
		kind := mscclgo.ErrTimeout
		if who == "itself" {
			kind, stays = mscclgo.ErrInvalid, true
		}
		boot.Abort(mscclgo.Errorf(kind, "wait", "no sign of it").At(1, 2))
	}
	if err == nil {
		<-boot.Done()
	}
	if stays {
		time.Sleep(time.Minute)
	}
	os.Exit(3)
}

// againRank is one of three ranks whose group fails because of rank 2, and meets again. Then rank 1
// exits with 3, and the others stay until they are ended.
func againRank() {
	env, err := bootstrap.FromEnv(os.LookupEnv)
	if err != nil {
		panic(err)
	}
	rank := env.Options.Rank
	boot, err := bootstrap.Connect(context.Background(), env.Options)
	if err != nil {
		panic(err)
	}
	boot.Barrier(context.Background()) // once rank 1 has left it, all have left Connect
	if rank == 1 {
		boot.Abort(mscclgo.Errorf(mscclgo.ErrTimeout, "wait", "no sign of it").At(1, 2))
	}
	<-boot.Done()
	boot.Close()
	if boot, err = bootstrap.Connect(context.Background(), env.Options); err != nil {
		panic(err)
	}
	boot.Barrier(context.Background())
	if rank == 1 {
		os.Exit(3)
	}
	time.Sleep(time.Minute)
}

// lateRank is one of three ranks. Rank 1 exits with 3, and rank 0 blames rank 2 once the launcher ends it.
func lateRank() {
	env, err := bootstrap.FromEnv(os.LookupEnv)
	if err != nil {
		panic(err)
	}
	asked := make(chan os.Signal, 1)
	if env.Options.Rank == 0 {
		signal.Notify(asked, syscall.SIGTERM)
	}
	boot, err := bootstrap.Connect(context.Background(), env.Options)
	if err != nil {
		panic(err)
	}
	boot.Close() // so that rank 1's end makes no report
	switch env.Options.Rank {
	case 0:
		<-asked
		watch.Send(watch.Report{Group: boot.Group(), Rank: 2, Text: "its process has ended"})
		os.Exit(4)
	case 1:
		os.Exit(3)
	}
	time.Sleep(time.Minute)
}

// runRole runs three ranks of this binary in a role. It returns the code, the error, and what they print.
func runRole(t *testing.T, role string, args ...string) (int, *mscclgo.Error, string) {
	t.Helper()
	exe, err := os.Executable()
	testerr.Check(t, err)
	var out bytes.Buffer
	code, err := Run(t.Context(), Options{Ranks: 3, Program: exe, Args: args, Env: []string{roleVariable + "=" + role}, Stdout: &out, Stderr: &out})
	var e *mscclgo.Error
	if !errors.As(err, &e) {
		t.Fatalf("Run = %d, %v\n%s", code, err, &out)
	}
	return code, e, out.String()
}

// TestLateReport checks that the launcher does not blame a rank that it has ended itself: a peer may
// notice that end before the first one.
func TestLateReport(t *testing.T) {
	if code, e, out := runRole(t, "late"); code != 3 || e.Rank != 1 {
		t.Errorf("Run = %d, %v, which does not blame rank 1\n%s", code, e, out)
	}
}

// TestCulpritAgain checks that the launcher does not take what made the first group of its
// processes fail for what ended their second.
func TestCulpritAgain(t *testing.T) {
	if code, e, out := runRole(t, "again"); code != 3 || e.Rank != 1 || strings.Contains(e.Error(), "no sign of it") {
		t.Errorf("Run = %d, %v, which does not blame rank 1\n%s", code, e, out)
	}
}

// TestCulpritEndsWell checks that the launcher names a rank that ended with code 0 and did not come to
// the rendezvous, for which the others fail.
func TestCulpritEndsWell(t *testing.T) {
	if code, e, out := runRole(t, "leaves"); code != 3 || e.Rank != 1 || !strings.Contains(e.Error(), "rank 1 exited with code 0 before all ranks had come") {
		t.Errorf("Run = %d, %v, which does not blame rank 1\n%s", code, e, out)
	}
}

// TestCulprit checks that the launcher names the rank that the others blame, though
// it is the last to end.
func TestCulprit(t *testing.T) {
	for who, culprit := range map[string]int{"peer": 2, "itself": 1} {
		t.Run(who, func(t *testing.T) {
			code, e, out := runRole(t, "blame", who)
			if code != 3 || e.Rank != culprit {
				t.Fatalf("Run = %d, %v, which does not blame rank %d\n%s", code, e, culprit, out)
			}
			for _, want := range []string{"no sign of it", "exited with code 3", "ended by SIGTERM"} {
				if !strings.Contains(e.Error(), want) {
					t.Errorf("error %q lacks %q", e, want)
				}
			}
		})
	}
}
