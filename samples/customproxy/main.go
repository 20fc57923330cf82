// Customproxy has a trigger of its own: a kernel estimates pi and reports its counts
// to the host, where a handler adds them up while the kernel runs. The proxy's metrics
// are on an HTTP page that a Prometheus server can scrape.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/launcher"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/proxyservice/metrics"
)

//go:embed customproxy.cu
var source []byte

// hits is the kind of the kernel's trigger: kHits of customproxy.cu.
const hits = fifo.FirstUserKind

// config is what the flags set.
type config struct {
	listen                         string
	linger                         time.Duration
	blocks, threads, rounds, darts int
}

func main() {
	var cfg config
	ranks := flag.Int("n", 1, "ranks to start, unless a launcher has")
	device := flag.String("device", "auto", `"cuda", "emu", "auto", or one device such as "cuda:0"`)
	timeout := flag.Duration("timeout", 10*time.Minute, "of the whole run, without -linger")
	flag.StringVar(&cfg.listen, "listen", "127.0.0.1:0", "address of the page; port 0 has the system choose one")
	flag.DurationVar(&cfg.linger, "linger", 0, "how long the page stays up after the work is done")
	flag.IntVar(&cfg.blocks, "blocks", 8, "blocks of the kernel")
	flag.IntVar(&cfg.threads, "threads", 64, "threads of a block")
	flag.IntVar(&cfg.rounds, "rounds", 100, "rounds, after each of which a block reports to the host")
	flag.IntVar(&cfg.darts, "darts", 100, "darts of a thread in a round")
	flag.Parse()
	if err := cfg.check(flag.NArg()); err != nil {
		log.Fatal(err)
	}
	launcher.Self(*ranks)
	ctx, cancel := context.WithTimeout(context.Background(), *timeout+cfg.linger)
	defer cancel()

	err := communicator.Run(ctx, communicator.Options{Device: *device}, func(ctx context.Context, comm *communicator.Communicator) error {
		return run(ctx, comm, cfg, os.Stdout)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// check returns the error of flags and arguments that make no sense.
func (c *config) check(args int) error {
	switch {
	case args > 0:
		return errors.New("there are no arguments, only flags")
	case min(c.blocks, c.threads, c.rounds, c.darts) < 1 || c.blocks > 1<<16 || c.threads > 1<<10 || max(c.rounds, c.darts) > 1<<18:
		return errors.New("-blocks is from 1 to 65536, -threads from 1 to 1024, and -rounds and -darts from 1 to 262144")
	}
	return nil // all darts together fit an int, and the darts of a block in a round a uint32
}

// score is what the handler adds up. Until the service has stopped, only the proxy's
// goroutine uses it.
type score struct{ hits, darts, triggers uint64 }

// serve is the handler. It is called for every trigger, in the order of the pushes.
func (s *score) serve(_ context.Context, t fifo.Trigger) error {
	if t.Kind != hits {
		return fmt.Errorf("a trigger has kind %d, not %d", t.Kind, hits)
	}
	s.hits += t.B
	s.darts += t.C
	s.triggers++
	return nil
}

// run estimates pi and prints the result.
func run(ctx context.Context, comm *communicator.Communicator, cfg config, out io.Writer) (err error) {
	device := comm.Device()
	module, err := devicecode.Load(ctx, device, "customproxy.cu", source, devicecode.Options{})
	if err != nil {
		return err
	}
	kernel, err := module.Kernel("throwDarts")
	if err != nil {
		return err
	}
	stream, err := comm.NewStream()
	if err != nil {
		return err
	}
	defer stream.Close()
	var total score
	service, err := comm.ProxyService(ctx, proxyservice.ServiceOptions{Handler: total.serve, Options: proxyservice.Options{Count: true}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, service.Close()) }()
	registry := prometheus.NewRegistry()
	if err := registry.Register(metrics.New(fmt.Sprintf("rank %d", comm.Rank()), service)); err != nil {
		return err
	}
	page, err := net.Listen("tcp", cfg.listen)
	if err != nil {
		return err
	}
	defer page.Close()
	go http.Serve(page, promhttp.HandlerFor(registry, promhttp.HandlerOpts{})) // until the page is closed
	fmt.Fprintf(out, "rank %d on %v: metrics at http://%v/metrics\n", comm.Rank(), device, page.Addr())

	if err := kernel.Launch(stream, gpu.Blocks(cfg.blocks, cfg.threads), service.Fifo(), comm.Rank(), cfg.rounds, cfg.darts); err != nil {
		return err
	}
	if err := stream.Synchronize(ctx); err != nil {
		return err
	}
	if err := service.Stop(ctx); err != nil { // all triggers are served
		return err
	}
	estimate := 4 * float64(total.hits) / float64(total.darts)
	fmt.Fprintf(out, "rank %d: pi is about %.4f, by %d darts in %d triggers\n", comm.Rank(), estimate, total.darts, total.triggers)
	if want := uint64(cfg.blocks * cfg.threads * cfg.rounds * cfg.darts); total.darts != want {
		return fmt.Errorf("%d darts were reported, %d thrown", total.darts, want)
	}
	// The estimate's standard deviation is 1.64 over the root of the darts.
	if off := math.Abs(estimate - math.Pi); off > 5*1.64/math.Sqrt(float64(total.darts)) {
		return fmt.Errorf("the estimate is off by %v", off)
	}
	select {
	case <-time.After(cfg.linger):
	case <-ctx.Done():
	}
	return nil
}
