package communicator_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// ports are two ranks' port channels to each other over Ethernet, though both run
// on this machine.
type ports struct {
	comms    []*communicator.Communicator
	workers  []*worker
	channels [2]*communicator.PortChannels
}

func newPorts(b *testing.B, bytes uint64, o proxyservice.ServiceOptions) *ports {
	b.Helper()
	p := &ports{comms: group(b, 2, overEthernet())}
	p.workers = workers(b, p.comms)
	var services [2]*proxyservice.ProxyService
	each(b, 2, func(rank int) (err error) {
		c := p.comms[rank]
		if services[rank], err = c.ProxyService(b.Context(), o); err != nil {
			return err
		}
		p.channels[rank], err = c.PortChannels(b.Context(), services[rank], upload(b, c.Device(), 0, int(bytes)), communicator.PortChannelOptions{})
		return err
	})
	if b.Failed() {
		b.FailNow()
	}
	b.Cleanup(func() {
		each(b, 2, func(rank int) error { return services[rank].Close() })
		each(b, 2, func(rank int) error { return p.channels[rank].Close() })
	})
	return p
}

// handle returns the address of a rank's channel to the other.
func (p *ports) handle(rank int) gpu.Ptr { return p.channels[rank].HandleOf(0, 1-rank) }

// BenchmarkEthernetRoundTrip measures a put with signal from a kernel to the peer's
// and one back. With inline=none the host fetches the bytes of small puts too.
func BenchmarkEthernetRoundTrip(b *testing.B) {
	for _, c := range []struct {
		name   string
		bytes  uint64
		inline int
	}{
		{"bytes=8", 8, 0}, {"bytes=1024", 1 << 10, 0}, {"bytes=65536", 64 << 10, 0},
		{"bytes=8,inline=none", 8, -1}, {"bytes=1024,inline=none", 1 << 10, -1},
	} {
		b.Run(c.name, func(b *testing.B) {
			bytes := c.bytes
			p := newPorts(b, bytes, proxyservice.ServiceOptions{Inline: c.inline})
			rounds := min(b.N, 1<<20)
			times := [2]*gpu.Buffer{}
			for rank, c := range p.comms {
				times[rank] = upload(b, c.Device(), 0, rounds*4)
			}
			b.ResetTimer()
			each(b, 2, func(rank int) error {
				return p.workers[rank].run(b.Context(), "portVolley", 1, p.handle(rank), bytes, uint32(rounds), rank == 0, times[rank])
			})
			took := make([]uint32, rounds)
			if err := gpu.CopyOut(took, times[0]); err != nil {
				b.Fatal(err)
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[rounds/2])/1e3, "p50-us")
			b.ReportMetric(float64(took[rounds*99/100])/1e3, "p99-us")
		})
	}
}

// BenchmarkEthernetBandwidth measures puts with signals, one behind the other, and
// a flush behind the last. BenchmarkWrite of connection/ethernet has plain TCP's.
func BenchmarkEthernetBandwidth(b *testing.B) {
	for _, mib := range []uint64{1, 16} {
		b.Run(fmt.Sprintf("%dM", mib), func(b *testing.B) {
			if mib > 1 && !testdev.CUDA() {
				b.Skip("an emulated device has no bandwidth to measure")
			}
			bytes := mib << 20
			p := newPorts(b, bytes, proxyservice.ServiceOptions{})
			w := p.workers[0]
			if err := w.run(b.Context(), "portStream", 1, p.handle(0), bytes, uint32(1)); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(bytes))
			b.ResetTimer()
			if err := w.run(b.Context(), "portStream", 1, p.handle(0), bytes, uint32(b.N)); err != nil {
				b.Fatal(err)
			}
		})
	}
}
