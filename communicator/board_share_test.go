package communicator

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/fdpass"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// doomed is the bootstrap of a rank whose group fails.
type doomed struct {
	many
	failed chan struct{}
}

func (f doomed) Done() <-chan struct{} { return f.failed }
func (f doomed) Err() error            { return errors.New("the group has failed") }
func (f doomed) Group() [16]byte       { return [16]byte{} }
func (f doomed) Key(string) [32]byte   { return [32]byte{} }

// TestBoardOfStoppedRank has a rank ask one that is stopped for the board, until the group fails.
func TestBoardOfStoppedRank(t *testing.T) {
	boot := doomed{many{rank: 1, size: 2}, make(chan struct{})}
	c := &Communicator{boot: boot, options: Options{Timeout: time.Minute}}
	asked, end := make(chan struct{}), make(chan struct{})
	server, err := fdpass.Listen(c.boardKey(), time.Minute, slog.New(slog.DiscardHandler), func([]byte, bool) fdpass.Answer {
		close(asked)
		<-end // as if its process were stopped
		return fdpass.Answer{}
	})
	testerr.Check(t, err)
	defer server.Close()
	defer close(end)
	go func() {
		<-asked
		close(boot.failed)
	}()
	began := time.Now()
	if b, err := c.fetchBoard(t.Context(), server.Name(), 2); b != nil || !errors.Is(err, mscclgo.ErrAborted) {
		t.Errorf("a board %v, %v; want none, since the group failed", b, err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v after the group failed", took)
	}
}
