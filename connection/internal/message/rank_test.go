package message

import (
	"errors"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testdriver"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// stuck is a half that cannot be freed, as its Close says once it is let go.
type stuck struct {
	Half
	letGo chan struct{}
	err   error
}

// Watch may be called meanwhile.
func (s *stuck) Watch(time.Time) {}

func (s *stuck) Close() error {
	<-s.letGo
	return s.err
}

type closer func() error

func (c closer) Close() error { return c() }

// TestClosedTogether closes a transport by two goroutines at once, of which a connection cannot be freed.
func TestClosedTogether(t *testing.T) {
	reg, err := registeredmem.NewRegistry(registeredmem.Options{Device: testdev.Open(t, 0), Unmapped: true})
	testerr.Check(t, err)
	defer reg.Close()
	var r Rank
	testerr.Check(t, r.Init(reg, "test", registeredmem.SHM, Options{}))
	r.Watch()
	s := &stuck{letGo: make(chan struct{}), err: errors.New("not freed")}
	var e End
	e.Open(&r, s, 1, func() {})
	testerr.Check(t, e.Begin(func() {}))
	stop := closer(func() error { return r.Close(func() error { return nil }) })
	testdriver.ClosedTogether(t, stop, func() { close(s.letGo) }, s.err)
	if err := e.Begin(func() { t.Error("a connection begins of a transport that is closed") }); err == nil {
		t.Error("a connection begins")
	}
}
