package communicator_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/connection/ib"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/garbage"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// ports are two ranks' port channels to each other over a network, though both run on
// this machine.
type ports struct {
	comms    []*communicator.Communicator
	workers  []*worker
	channels [2]*communicator.PortChannels
}

func newPorts(b *testing.B, comms []*communicator.Communicator, bytes uint64, o proxyservice.ServiceOptions) *ports {
	b.Helper()
	p := &ports{comms: comms}
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
			p := newPorts(b, group(b, 2, overEthernet()), bytes, proxyservice.ServiceOptions{Inline: c.inline})
			rounds := min(b.N, 1<<20)
			times := [2]*gpu.Buffer{}
			for rank, c := range p.comms {
				times[rank] = upload(b, c.Device(), 0, rounds*4)
			}
			b.ResetTimer()
			each(b, 2, func(rank int) error {
				return p.workers[rank].run(b.Context(), "portVolley", 1, p.handle(rank), bytes, uint32(rounds), rank == 0, times[rank])
			})
			spread(b, times[0], rounds, 1)
		})
	}
}

// spread reports quantiles of times, of which each is of so many ways.
func spread(b *testing.B, times *gpu.Buffer, rounds, ways int) {
	b.Helper()
	took := make([]uint32, rounds)
	testerr.Check(b, gpu.CopyOut(took, times))
	slices.Sort(took)
	for _, q := range []struct {
		name    string
		permill int
	}{{"p50-us", 500}, {"p99-us", 990}, {"p99.9-us", 999}} {
		b.ReportMetric(float64(took[rounds*q.permill/1000])/1e3/float64(ways), q.name)
	}
}

// BenchmarkInfiniBandLatency measures one way of a put of 8 bytes with its signal over
// InfiniBand, as ib_write_lat measures writes: half of the way there and back. One thread
// has both ends, and one thread serves both rings, so that as many threads poll as with
// ib_write_lat, which matters where there are few cores. The kernel and, with a queue for
// threads in C, the proxies have nothing to do with Go's collector.
func BenchmarkInfiniBandLatency(b *testing.B) {
	for _, beside := range []string{"nothing", "garbage"} {
		b.Run("beside="+beside, func(b *testing.B) {
			var o [2]communicator.Options
			for rank := range o {
				o[rank] = overInfiniBand(b, rank, ib.Options{})
			}
			one := []*gpu.Device{testdev.Open(b, 0), testdev.Open(b, 0)} // the kernel has addresses of both ranks
			p := newPorts(b, groupOn(b, one, o[:]), 8, proxyservice.ServiceOptions{Options: proxyservice.Options{Threads: &proxyservice.Threads{}}})
			if beside == "garbage" {
				garbage.Make(b)
			}
			rounds := min(b.N, 1<<20)
			times := upload(b, p.comms[0].Device(), 0, rounds*4)
			b.ResetTimer()
			testerr.Check(b, p.workers[0].run(b.Context(), "portThereAndBack", 1, p.handle(0), p.handle(1), uint64(8), uint32(rounds), times))
			spread(b, times, rounds, 2)
		})
	}
}

// BenchmarkInfiniBandServices measures puts of 8 KiB with signals, one behind the other, by one service,
// and by two that share the connection.
func BenchmarkInfiniBandServices(b *testing.B) {
	const bytes = 8 << 10
	for services := 1; services <= 2; services++ {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			var o [2]communicator.Options
			for rank := range o {
				o[rank] = overInfiniBand(b, rank, ib.Options{})
			}
			comms := groupWith(b, o[:])
			all := make([]*ports, services)
			for i := range all {
				all[i] = newPorts(b, comms, bytes, proxyservice.ServiceOptions{})
			}
			stream := func(count int) {
				each(b, services, func(i int) error {
					return all[i].workers[0].run(b.Context(), "portStream", 1, all[i].handle(0), uint64(bytes), uint32(count))
				})
			}
			stream(1)
			b.SetBytes(bytes)
			b.ResetTimer()
			stream((b.N + services - 1) / services)
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
			p := newPorts(b, group(b, 2, overEthernet()), bytes, proxyservice.ServiceOptions{})
			w := p.workers[0]
			testerr.Check(b, w.run(b.Context(), "portStream", 1, p.handle(0), bytes, uint32(1)))
			b.SetBytes(int64(bytes))
			b.ResetTimer()
			testerr.Check(b, w.run(b.Context(), "portStream", 1, p.handle(0), bytes, uint32(b.N)))
		})
	}
}
