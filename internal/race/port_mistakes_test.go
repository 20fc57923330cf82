package race_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
)

//go:embed testdata/port_mistakes.cu
var portMistakes []byte

var portKernels = []string{"putTooEarly", "noFlush", "readTooEarly", "getNotAwaited"}

// TestPortMistakes runs the mistakes where the host moves all, over each transport.
func TestPortMistakes(t *testing.T) {
	for _, transport := range portTransports() {
		t.Run(transport.String(), func(t *testing.T) {
			races := runPorts(t, transport, false)
			for _, name := range portKernels {
				if transport == registeredmem.InfiniBand && name == "readTooEarly" {
					continue // the card writes, which nobody sees
				}
				lines := places("port_mistakes.cu", portMistakes, name)
				found := false
				for _, r := range races {
					first, _, _ := strings.Cut(r.First.Place, " ")
					second, _, _ := strings.Cut(r.Second.Place, " ")
					found = found || first != second && lines[first] && lines[second]
				}
				if !found {
					t.Errorf("%s was not reported at %v", name, lines)
				}
			}
			for _, r := range races {
				t.Logf("%v", r)
				first, _, _ := strings.Cut(r.First.Place, " ")
				second, _, _ := strings.Cut(r.Second.Place, " ")
				if !slices.ContainsFunc(portKernels, func(name string) bool {
					lines := places("port_mistakes.cu", portMistakes, name)
					return lines[first] && lines[second]
				}) {
					t.Errorf("this is not a seeded mistake:\n%v", r)
				}
			}
			for _, r := range runPorts(t, transport, true) {
				t.Errorf("of the mended kernels:\n%v", r)
			}
		})
	}
}

// portTransports returns the transports that there are here. The last one maps no memory.
func portTransports() []registeredmem.Transports {
	transports := []registeredmem.Transports{registeredmem.CudaIPC, registeredmem.SHM, registeredmem.Ethernet}
	if os.Getenv("MSCCLGO_TEST_IB_DEVICES") != "" {
		transports = append(transports, registeredmem.InfiniBand)
	}
	return transports
}

// runOver runs two ranks over a transport, and returns the races.
func runOver(t *testing.T, transport registeredmem.Transports, f func(context.Context, *communicator.Communicator) error) []gpu.Race {
	finder, err := gpu.FindRaces()
	if err != nil {
		t.Fatal(err)
	}
	defer finder.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	devices := make([]*gpu.Device, 2)
	for i := range devices {
		if devices[i], err = gpu.Open(fmt.Sprintf("emu:%d", i)); err != nil {
			t.Fatal(err)
		}
		defer devices[i].Close()
	}
	o := communicator.Options{Timeout: time.Minute, Transports: transport}
	o.InfiniBand.Device, _, _ = strings.Cut(os.Getenv("MSCCLGO_TEST_IB_DEVICES"), ",")
	if err := communicator.RunTogether(ctx, devices, o, f); err != nil {
		t.Fatal(err)
	}
	races, unwatched, err := finder.Races()
	if err != nil || len(unwatched) > 0 {
		t.Fatal(unwatched, err)
	}
	return races
}

func runPorts(t *testing.T, transport registeredmem.Transports, mended bool) []gpu.Race {
	var options devicecode.Options
	if mended {
		options.Defines = []string{"MENDED"}
	}
	return runOver(t, transport, func(ctx context.Context, comm *communicator.Communicator) error {
		service, err := comm.ProxyService(ctx, proxyservice.ServiceOptions{})
		if err != nil {
			return err
		}
		defer service.Close()
		buffer, err := gpu.Upload(comm.Device(), make([]byte, len(portKernels)*perCase))
		if err != nil {
			return err
		}
		ports, err := comm.PortChannels(ctx, service, buffer, communicator.PortChannelOptions{})
		if err != nil {
			return err
		}
		module, err := devicecode.Load(ctx, comm.Device(), "port_mistakes.cu", portMistakes, options)
		if err != nil {
			return err
		}
		stream, err := comm.NewStream()
		if err != nil {
			return err
		}
		for i, name := range portKernels {
			k, err := module.Kernel(name)
			if err != nil {
				return err
			}
			err = k.Launch(stream, gpu.Blocks(1, 64), ports.HandleOf(0, 1-comm.Rank()), buffer, uint64(i*perCase), uint32(comm.Rank()))
			if err = errors.Join(err, comm.Barrier(ctx), comm.Synchronize(ctx, stream), comm.Barrier(ctx)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
}
