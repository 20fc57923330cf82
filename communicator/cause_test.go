package communicator_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// causeFirst checks that an error of rank 0 begins with what rank 2 did.
func causeFirst(t *testing.T, what string, err error) {
	t.Helper()
	var e *mscclgo.Error
	if !errors.As(err, &e) || e.Peer != 2 || !strings.Contains(e.Error(), "the cause") {
		t.Errorf("%s: %v; want first what rank 2 did", what, err)
	}
}

// failsAndGoes has rank 2 abort the group and rank 1 leave it, and waits until rank 0 knows.
func failsAndGoes(t *testing.T, comms []*communicator.Communicator, leave func() error) {
	t.Helper()
	comms[2].Abort(errors.New("the cause"))
	for _, c := range comms[:2] {
		select {
		case <-c.Done():
		case <-time.After(soon):
			t.Fatal("the ranks do not hear of the failure")
		}
	}
	testerr.Report(t, leave())
}

// unmapped are the options of groups that move data over a network, or shared memory.
func unmapped() map[string]communicator.Options {
	return map[string]communicator.Options{
		"Ethernet": overEthernet(),
		"SHM":      {Timeout: 20 * time.Second, Transports: registeredmem.SHM},
	}
}

// TestConnectNamesCause has rank 2 fail while rank 0 connects to rank 1, which has met it and
// does nothing more.
func TestConnectNamesCause(t *testing.T) {
	for name, o := range unmapped() {
		t.Run(name, func(t *testing.T) {
			comms := group(t, 3, o)
			connected := make(chan error, 1)
			go func() {
				_, err := comms[0].Connect(t.Context(), 1, 7)
				connected <- err
			}()
			done := testerr.Must(communicator.MeetOnly(t.Context(), comms[1], 0, 7))(t)
			defer done()
			comms[2].Abort(errors.New("the cause"))
			causeFirst(t, "connect", <-connected)
		})
	}
}

// TestCauseComesFirst has rank 2 fail and rank 1 go after it. What rank 0 then does with rank 1
// names rank 2 first.
func TestCauseComesFirst(t *testing.T) {
	for name, o := range unmapped() {
		t.Run(name, func(t *testing.T) {
			comms := group(t, 3, o)
			all := workers(t, comms)
			services, ports, conns := make([]*proxyservice.ProxyService, 3), make([]*communicator.PortChannels, 3), make([]*connection.Connection, 3)
			memories, theirs := make([]*registeredmem.Memory, 3), make([]*registeredmem.Memory, 3)
			each(t, 3, func(rank int) (err error) {
				c := comms[rank]
				if services[rank], err = c.ProxyService(t.Context(), proxyservice.ServiceOptions{}); err != nil {
					return err
				}
				if ports[rank], err = c.PortChannels(t.Context(), services[rank], upload(t, c.Device(), 0, 64), communicator.PortChannelOptions{}); err != nil {
					return err
				}
				shared, err := c.Share(t.Context(), upload(t, c.Device(), 0, 64))
				if err != nil {
					return err
				}
				if rank < 2 {
					memories[rank], theirs[rank] = shared.Memories[rank], shared.Memories[1-rank]
					conns[rank], err = c.Connect(t.Context(), 1-rank, 7)
				}
				return err
			})
			if t.Failed() {
				t.FailNow()
			}
			t.Cleanup(func() {
				for i := range 3 {
					errors.Join(services[i].Close(), ports[i].Close())
				}
			})
			testerr.Check(t, all[0].launch("portStream", 1, 1, ports[0].HandleOf(0, 1), uint64(64), uint32(1<<30)))
			failsAndGoes(t, comms, func() error {
				return errors.Join(services[1].Close(), ports[1].Close(), conns[1].Close(), comms[1].Close())
			})
			for end := time.Now().Add(soon); ; time.Sleep(time.Millisecond) {
				if err := conns[0].Write(theirs[0], 0, memories[0], 0, 8); err != nil {
					causeFirst(t, "a write", err)
					break
				}
				if time.Now().After(end) {
					t.Fatal("writes to a rank that has left go on")
				}
			}
			causeFirst(t, "a kernel's work", comms[0].Synchronize(t.Context(), all[0].stream))
			for what, err := range map[string]error{
				"a flush": conns[0].Flush(t.Context()), "a flush of ports": ports[0].Flush(t.Context()), "a service": services[0].Close(),
			} {
				if err != nil { // else all was done before
					causeFirst(t, what, err)
				}
			}
			if err := conns[0].Close(); err != nil {
				t.Errorf("closing a connection: %v", err)
			}
		})
	}
}

// TestCauseOfCallsUnderWay has rank 0 in calls that need rank 1 when rank 2 fails and rank 1 goes.
func TestCauseOfCallsUnderWay(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, c *communicator.Communicator, s *proxyservice.ProxyService, b *gpu.Buffer) error{
		"connect": func(ctx context.Context, c *communicator.Communicator, _ *proxyservice.ProxyService, _ *gpu.Buffer) error {
			_, err := c.Connect(ctx, 1, 7)
			return err
		},
		"share": func(ctx context.Context, c *communicator.Communicator, _ *proxyservice.ProxyService, b *gpu.Buffer) error {
			_, err := c.Share(ctx, b)
			return err
		},
		"ports": func(ctx context.Context, c *communicator.Communicator, s *proxyservice.ProxyService, b *gpu.Buffer) error {
			_, err := c.PortChannels(ctx, s, b, communicator.PortChannelOptions{})
			return err
		},
		"pipes": func(ctx context.Context, c *communicator.Communicator, s *proxyservice.ProxyService, _ *gpu.Buffer) error {
			_, err := c.Pipes(ctx, communicator.PipeOptions{To: []int{1}, Service: s})
			return err
		},
		"split": func(ctx context.Context, c *communicator.Communicator, _ *proxyservice.ProxyService, _ *gpu.Buffer) error {
			_, err := c.Split(ctx, 0, 0)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			comms := group(t, 3, overEthernet())
			service := testerr.Must(comms[0].ProxyService(t.Context(), proxyservice.ServiceOptions{}))(t)
			defer service.Close()
			ended := make(chan error, 1)
			go func() { ended <- call(t.Context(), comms[0], service, upload(t, comms[0].Device(), 0, 64)) }()
			time.Sleep(20 * time.Millisecond)
			failsAndGoes(t, comms, comms[1].Close)
			select {
			case err := <-ended:
				causeFirst(t, name, err)
			case <-time.After(soon):
				t.Fatal("the call goes on")
			}
		})
	}
}

// heldKey is a bootstrap that holds up who asks for a key.
type heldKey struct {
	*bootstrap.Bootstrap
	asked chan struct{}
	held  <-chan struct{}
}

func (h *heldKey) Key(purpose string) [32]byte {
	if purpose == "split" {
		h.asked <- struct{}{}
		<-h.held
	}
	return h.Bootstrap.Key(purpose)
}

// TestCauseOfSplit has rank 2 fail while the others make a group of their own, in which rank 1
// gives up: rank 0 names rank 2 first.
func TestCauseOfSplit(t *testing.T) {
	o := communicator.Options{Timeout: 2 * time.Second}
	boots := ranks(t, 3)
	held := make(chan struct{})
	hold := &heldKey{boots[1], make(chan struct{}, 1), held}
	comms := groupOver(t, []communicator.Bootstrap{boots[0], hold, boots[2]}, devices(t, 3), []communicator.Options{o, o, o})
	gone, leave := context.WithCancel(t.Context())
	errs := make([]error, 3)
	var all sync.WaitGroup
	for rank, c := range comms {
		ctx, color := t.Context(), 0
		switch rank {
		case 1:
			ctx = gone
		case 2:
			color = -1
		}
		all.Go(func() { _, errs[rank] = c.Split(ctx, color, 0) })
	}
	<-hold.asked // all have the id
	failsAndGoes(t, comms, func() error { leave(); return nil })
	close(held)
	all.Wait()
	for _, err := range errs[:2] {
		causeFirst(t, "split", err)
	}
}
