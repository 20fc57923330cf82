package communicator

import (
	"context"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/connection/ib"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// TestInfiniBandTimeout has InfiniBand wait longer than kernels do, whose waits have a verdict
// then, unless the user has set how long. "stopped, with data under way" of TestVerdictProcesses
// shows it over Ethernet; connection/ib keeps what it is given (TestTimeoutIsKept there).
func TestInfiniBandTimeout(t *testing.T) {
	for given, want := range map[time.Duration]time.Duration{0: 8 * time.Second, 3 * time.Second: 3 * time.Second} {
		c := &Communicator{options: Options{Timeout: 7 * time.Second, InfiniBand: ib.Options{Timeout: given}}}
		if got := c.infiniBandOptions().Timeout; got != want {
			t.Errorf("waits last 7s, the network's time-out is %v, and InfiniBand gets %v, want %v", given, got, want)
		}
	}
}

// TestLongestTimeout has a program that wants waits to last for ever, as it may say by the longest
// time that there is.
func TestLongestTimeout(t *testing.T) {
	devices := []*gpu.Device{testdev.Open(t, 0), testdev.Open(t, 1)}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	o := Options{Timeout: math.MaxInt64, Transports: registeredmem.SHM | registeredmem.Ethernet}
	o.Ethernet.Interface = "lo" // so that it is opened, or is an error
	err := RunTogether(ctx, devices, o, func(ctx context.Context, c *Communicator) error {
		return c.Barrier(ctx)
	})
	testerr.Report(t, err)
}

// TestChooseTransport has pairs of ranks with NICs of several rates. Both must choose the same.
func TestChooseTransport(t *testing.T) {
	const shm, ib, tcp = registeredmem.SHM, registeredmem.InfiniBand, registeredmem.Ethernet
	has := func(transports registeredmem.Transports, rdma, tcp float64) opened { // Gbit/s
		return opened{transports: transports, rdma: rdma / 8, tcp: tcp / 8}
	}
	for name, c := range map[string]struct {
		a, b     opened
		sameHost bool
		want     registeredmem.Transports
	}{
		"one card":                    {has(ib|tcp, 100, 100), has(ib|tcp, 100, 100), false, ib},
		"fast Ethernet beside a card": {has(ib|tcp, 10, 100), has(ib|tcp, 10, 100), false, tcp},
		"at one end only":             {has(ib|tcp, 10, 100), has(ib|tcp, 10, 10), false, ib},
		"a slow card at one end":      {has(ib|tcp, 100, 100), has(ib|tcp, 10, 100), false, tcp},
		"more than a socket carries":  {has(ib|tcp, 100, 400), has(ib|tcp, 100, 400), false, ib},
		"a card that is named":        {has(ib|tcp, 10, 100), has(ib|tcp, 0, 100), false, ib},
		"Ethernet of unknown rate":    {has(ib|tcp, 10, 0), has(ib|tcp, 10, 100), false, ib},
		"no card at one end":          {has(ib|tcp, 400, 10), has(tcp, 0, 10), false, tcp},
		"no Ethernet at one end":      {has(ib|tcp, 10, 100), has(ib, 10, 0), false, ib},
		"a rate that is none":         {has(ib|tcp, math.NaN(), 100), has(ib|tcp, 10, 100), false, ib},
		"one host":                    {has(shm|ib|tcp, 10, 100), has(shm|ib|tcp, 10, 100), true, shm},
		"one host without memory":     {has(ib|tcp, 10, 100), has(shm|ib|tcp, 10, 100), true, tcp},
		"memory of two hosts":         {has(shm|ib|tcp, 100, 100), has(shm|ib|tcp, 100, 100), false, ib},
		"nothing in common":           {has(shm|ib, 100, 0), has(shm|tcp, 0, 100), false, 0},
	} {
		for range 2 {
			a := testerr.Must(openedWire.Unmarshal(openedWire.Marshal(&c.a)))(t)
			if got := a.choose(c.b, c.sameHost); got != c.want {
				t.Errorf("%s: %v, not %v", name, got, c.want)
			}
			c.a, c.b = c.b, c.a
		}
	}
}

// TestEthernetFallback has the bootstrap's address be what Ethernet falls back on, unless the user names another.
func TestEthernetFallback(t *testing.T) {
	given := netip.MustParseAddr("192.0.2.1")
	var o Options
	for _, want := range []netip.Addr{{}, given} {
		o.Ethernet.Fallback = want
		err := RunTogether(t.Context(), []*gpu.Device{testdev.Open(t, 0)}, o, func(_ context.Context, c *Communicator) error {
			if !want.IsValid() {
				want = c.boot.(*bootstrap.Bootstrap).Internal().LocalAddr()
			}
			testcmp.Equal(t, "the fallback", c.ethernetOptions().Fallback, want)
			return nil
		})
		testerr.Report(t, err)
	}
}
