package ib

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"golang.org/x/sys/unix"
)

// begin calls f, and returns a channel that has its error once it returns.
func begin(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// end waits for what begin began.
func end(t *testing.T, what string, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		t.Fatalf("%s does not return", what)
		return nil
	}
}

// selfEndpoint returns an endpoint, and the bytes by which it connects to itself.
func (s *side) selfEndpoint(t *testing.T) (*endpoint, []byte) {
	t.Helper()
	e := testerr.Must(s.t.NewEndpoint())(t)
	data := testerr.Must(e.MarshalBinary())(t)
	return e.(*endpoint), data
}

// TestCloseWaits closes the transport while the device's lock holds up the making or closing of a connection.
// It waits for that, as another close of the connection does.
func TestCloseWaits(t *testing.T) {
	testDevices(t)
	for name, do := range map[string]func(e *endpoint, data []byte, c *conn) func() error{
		"connect": func(e *endpoint, data []byte, _ *conn) func() error {
			return func() error {
				_, err := e.connect(t.Context(), data)
				return err
			}
		},
		"close a connection": func(_ *endpoint, _ []byte, c *conn) func() error { return c.Close },
	} {
		t.Run(name, func(t *testing.T) {
			before := objects(t)
			s := newSide(t, 0, Options{QueuePairs: 2})
			connected, data := s.selfEndpoint(t)
			c := testerr.Must(connected.connect(t.Context(), data))(t)
			e, data := s.selfEndpoint(t)
			lock := &s.t.nics[0].mu
			lock.Lock()
			held := true
			unlock := func() {
				if held {
					held = false
					lock.Unlock()
				}
			}
			defer unlock()
			closed := map[string]<-chan error{name: begin(do(e, data, c))}
			time.Sleep(100 * time.Millisecond) // until it waits for the lock
			closed["Close of the connection"] = begin(c.Close)
			closed["Close of the transport"] = begin(s.t.Close)
			time.Sleep(100 * time.Millisecond)
			for what, done := range closed {
				select {
				case err := <-done:
					t.Fatalf("%s does not wait: %v", what, err)
				default:
				}
			}
			unlock()
			for what, done := range closed {
				err := end(t, what, done)
				if what == "connect" { // it finds the transport closed
					testerr.Expect(t, err, mscclgo.ErrInvalid, "closed")
				} else if err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			if after := objects(t); after != before {
				t.Errorf("verbs objects:\n%sthen:\n%s", before, after)
			}
		})
	}
}

// TestCloseBeside closes the transport beside each call that uses its devices: the devices are closed when
// none does, and nothing is left.
func TestCloseBeside(t *testing.T) {
	const calls = 8
	testDevices(t)
	rounds := 8
	if testing.Short() {
		rounds = 3 // in an emulated machine each takes a second
	}
	for name, prepare := range map[string]func(t *testing.T, s *side) func() error{
		"new endpoint": func(_ *testing.T, s *side) func() error {
			return func() error {
				for end := time.Now().Add(patience); time.Now().Before(end); {
					if _, err := s.t.NewEndpoint(); err != nil {
						return err
					}
				}
				return errors.New("the transport is never closed")
			}
		},
		"connect": func(t *testing.T, s *side) func() error {
			e, data := s.selfEndpoint(t)
			return func() error {
				_, err := e.Connect(t.Context(), data)
				return err
			}
		},
		"close an endpoint": func(t *testing.T, s *side) func() error {
			e, _ := s.selfEndpoint(t)
			return e.Close
		},
		"close a connection": func(t *testing.T, s *side) func() error {
			e, data := s.selfEndpoint(t)
			c := testerr.Must(e.Connect(t.Context(), data))(t)
			return c.Close
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := objects(t)
			for round := range rounds {
				s := newSide(t, 0, Options{QueuePairs: 4})
				var all sync.WaitGroup
				start := make(chan struct{})
				for range calls {
					call := prepare(t, s)
					all.Go(func() {
						<-start
						if err := call(); err != nil {
							testerr.Expect(t, err, mscclgo.ErrInvalid, "closed")
						}
					})
				}
				close(start)
				time.Sleep(time.Duration(round) * 2 * time.Millisecond)
				testerr.Report(t, end(t, "Close", begin(s.t.Close)))
				end(t, name, begin(func() error { all.Wait(); return nil }))
				if after := objects(t); after != before {
					t.Fatalf("verbs objects:\n%sthen:\n%s", before, after)
				}
			}
		})
	}
}

// TestCloseFails closes a connection and an endpoint whose memory cannot be freed, twice.
func TestCloseFails(t *testing.T) {
	testDevices(t)
	s := newSide(t, 0, Options{})
	connected, data := s.selfEndpoint(t)
	c := testerr.Must(connected.connect(t.Context(), data))(t)
	e, _ := s.selfEndpoint(t)
	for _, one := range []*endpoint{connected, e} {
		testerr.Check(t, unix.Munmap(one.scratch.bytes))
	}
	for name, one := range map[string]closer{"connection": c, "endpoint": e} {
		for range 2 {
			if err := end(t, name, begin(one.Close)); !errors.Is(err, unix.EINVAL) {
				t.Errorf("closing the %s: %v", name, err)
			}
		}
	}
}

// TestEndpointOfClosed uses an endpoint of a transport that is closed.
func TestEndpointOfClosed(t *testing.T) {
	testDevices(t)
	s := newSide(t, 0, Options{})
	e, data := s.selfEndpoint(t)
	testerr.Check(t, s.t.Close())
	if _, err := e.MarshalBinary(); err != nil {
		t.Error(err)
	}
	_, err := e.Connect(t.Context(), data)
	testerr.Expect(t, err, mscclgo.ErrInvalid, "the transport is closed")
	_, err = s.t.NewEndpoint()
	testerr.Expect(t, err, mscclgo.ErrInvalid, "the transport is closed")
	testerr.Report(t, e.Close())
}
