package communicator_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// lateNews is a bootstrap that hears of a failure when come is closed.
type lateNews struct {
	*bootstrap.Bootstrap
	come chan struct{}
}

func (l *lateNews) Done() <-chan struct{} { return l.come }

func (l *lateNews) Err() error {
	select {
	case <-l.come:
		return l.Bootstrap.Err()
	default:
		return nil
	}
}

// TestClosedBeforeTheNews has rank 1 put to rank 0, which has failed and closed its
// connections, before it hears of that: what it hears, of its proxy service too, is the failure,
// and not only what became of its put. It waits for news for as long as it is given, or as rank 2 is
// suspected to be silent, by which others may have failed.
func TestClosedBeforeTheNews(t *testing.T) {
	for name, o := range unmapped() {
		t.Run(name, func(t *testing.T) { closedBeforeTheNews(t, o, false) })
		t.Run(name+" and a silent rank", func(t *testing.T) { closedBeforeTheNews(t, o, true) })
	}
}

func closedBeforeTheNews(t *testing.T, o communicator.Options, silent bool) {
	boots := ranks(t, 3)
	late := &lateNews{boots[1], make(chan struct{})}
	comms := groupOver(t, []communicator.Bootstrap{boots[0], late, boots[2]}, devices(t, 3), []communicator.Options{o, o, o})
	if !silent {
		communicator.SetLostPatience(comms[1], time.Hour)
	} else {
		communicator.Mute(comms[2])
		for start := time.Now(); !communicator.Suspects(comms[1]); time.Sleep(time.Millisecond) {
			if time.Since(start) > soon {
				t.Fatal("rank 2 is silent, and not suspected")
			}
		}
	}
	all := workers(t, comms)
	services, ports := make([]*proxyservice.ProxyService, 3), make([]*communicator.PortChannels, 3)
	each(t, 3, func(rank int) (err error) {
		c := comms[rank]
		if services[rank], err = c.ProxyService(t.Context(), proxyservice.ServiceOptions{}); err != nil {
			return err
		}
		ports[rank], err = c.PortChannels(t.Context(), services[rank], upload(t, c.Device(), 0, 64), communicator.PortChannelOptions{})
		return err
	})
	if t.Failed() {
		t.FailNow()
	}
	t.Cleanup(func() {
		for i := range 3 {
			ports[i].Close()
			services[i].Close()
		}
	})
	comms[0].Abort(errors.New("the cause"))
	testerr.Report(t, errors.Join(ports[0].Close(), services[0].Close()))
	testerr.Check(t, all[1].launch("portStream", 1, 1, ports[1].HandleOf(0, 0), uint64(64), uint32(1<<30)))
	for start := time.Now(); services[1].Err() == nil; time.Sleep(time.Millisecond) {
		if time.Since(start) > soon {
			t.Fatal("puts to a rank that has closed its channels go on")
		}
	}
	time.Sleep(300 * time.Millisecond) // more than news may take otherwise
	if err := comms[1].Err(); err != nil {
		t.Errorf("rank 1 does not await the news: %v", err)
	}
	select {
	case <-boots[1].Done():
	case <-time.After(soon):
		t.Fatal("the bootstrap does not hear of the failure")
	}
	close(late.come)
	failing(t, 1, all[1].comm.Synchronize(t.Context(), all[1].stream), mscclgo.ErrAborted, "rank 1, peer 0", "the cause")
	failing(t, 1, services[1].Close(), mscclgo.ErrAborted, "rank 1, peer 0", "the cause")
}

// TestQueuedBehindAborted has rank 0 fail while a kernel waits. The kernel behind it puts and signals.
// Rank 1, which has not heard of the failure yet, must get nothing of that.
func TestQueuedBehindAborted(t *testing.T) {
	const bytes = 64
	options := unmapped()
	options["CUDA IPC"] = communicator.Options{Timeout: 20 * time.Second}
	for name, o := range options {
		t.Run(name, func(t *testing.T) {
			boots := ranks(t, 2)
			late := &lateNews{boots[1], make(chan struct{})}
			comms := groupOver(t, []communicator.Bootstrap{boots[0], late}, devices(t, 2), []communicator.Options{o, o})
			all := workers(t, comms)
			services, ports, inboxes := make([]*proxyservice.ProxyService, 2), make([]*communicator.PortChannels, 2), make([]*gpu.Buffer, 2)
			each(t, 2, func(rank int) (err error) {
				c := comms[rank]
				if services[rank], err = c.ProxyService(t.Context(), proxyservice.ServiceOptions{Direct: channel.HostOnly}); err != nil {
					return err
				}
				inboxes[rank] = upload(t, c.Device(), 0, bytes)
				ports[rank], err = c.PortChannels(t.Context(), services[rank], upload(t, c.Device(), 1, bytes), communicator.PortChannelOptions{Inbox: inboxes[rank]})
				return err
			})
			if t.Failed() {
				t.FailNow()
			}
			t.Cleanup(func() {
				close(late.come)
				for i := range 2 {
					services[i].Close()
					ports[i].Close()
				}
			})
			to := ports[0].HandleOf(0, 1)
			testerr.Check(t, errors.Join(all[0].launch("awaitPort", 1, 1, to), all[0].launch("portStream", 1, 1, to, uint64(bytes), uint32(1))))
			comms[0].Abort(errors.New("the cause"))
			failing(t, 0, all[0].comm.Synchronize(t.Context(), all[0].stream), mscclgo.ErrAborted, "the cause")
			if err := services[0].Close(); err != nil { // all that it was asked for is served
				t.Error(err)
			}
			time.Sleep(100 * time.Millisecond) // in which it would arrive
			got := make([]byte, bytes)
			testerr.Check(t, gpu.CopyOut(got, inboxes[1]))
			if n := slices.Index(got, 1); n >= 0 {
				t.Errorf("rank 1 got what was sent after the failure: %v", got)
			}
		})
	}
}
