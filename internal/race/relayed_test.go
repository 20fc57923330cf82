package race_test

import (
	"context"
	_ "embed"
	"errors"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/proxyservice"
)

//go:embed testdata/relayed.cu
var relayedSource []byte

// relayed is what a rank of TestRelayed has.
type relayed struct {
	comm    *communicator.Communicator
	service *proxyservice.ProxyService
	ports   *communicator.PortChannels
	port    gpu.Ptr
	b       *gpu.Buffer
	stream  *gpu.Stream
	module  *gpu.Module
}

func newRelayed(ctx context.Context, comm *communicator.Communicator) (r *relayed, err error) {
	r = &relayed{comm: comm}
	if r.b, err = gpu.Upload(comm.Device(), make([]byte, 3*4096)); err != nil {
		return nil, err
	}
	o := proxyservice.ServiceOptions{Handler: func(context.Context, fifo.Trigger) error { return gpu.CopyIn(r.b, make([]byte, 4096)) }}
	if r.service, err = comm.ProxyService(ctx, o); err != nil {
		return nil, err
	}
	if r.ports, err = comm.PortChannels(ctx, r.service, r.b, communicator.PortChannelOptions{}); err != nil {
		return nil, err
	}
	r.port = r.ports.HandleOf(0, 1-comm.Rank())
	if r.module, err = devicecode.Load(ctx, comm.Device(), "relayed.cu", relayedSource, devicecode.Options{}); err != nil {
		return nil, err
	}
	r.stream, err = comm.NewStream()
	return r, err
}

func (r *relayed) launch(s *gpu.Stream, name string, args ...any) error {
	k, err := r.module.Kernel(name)
	if err != nil {
		return err
	}
	return k.Launch(s, gpu.Blocks(1, 1), args...)
}

// writesThenTells are ways to have a kernel write the words and Go told of it by a flag, of pinned memory.
var writesThenTells = map[string]func(r *relayed, flag *gpu.Buffer) error{
	"kernel": func(r *relayed, flag *gpu.Buffer) error { return r.launch(r.stream, "writeBefore", r.b, flag) },
	"stream": func(r *relayed, flag *gpu.Buffer) error {
		return errors.Join(r.launch(r.stream, "writeOnly", r.b), r.stream.WriteValue64(flag, 0, 1))
	},
	"stream's addition": func(r *relayed, flag *gpu.Buffer) error {
		return errors.Join(r.launch(r.stream, "writeOnly", r.b), r.stream.Internal().Add64(flag, 0, 1))
	},
}

// byGo launches a kernel that Go wakes, by a word of pinned memory, once it is told that another has
// written.
func (r *relayed) byGo(ctx context.Context, name, told string) error {
	other, err := r.comm.NewStream()
	if err != nil {
		return err
	}
	flags, err := r.comm.Device().AllocHost(128)
	if err != nil {
		return err
	}
	second, err := flags.Slice(64, 8)
	if err != nil {
		return err
	}
	if err := errors.Join(r.launch(other, name, r.port, r.b, second), writesThenTells[told](r, flags)); err != nil {
		return err
	}
	word := func(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&flags.HostBytes()[at])) }
	for word(0).Load() == 0 && ctx.Err() == nil {
	}
	word(64).Store(1)
	return errors.Join(other.Synchronize(ctx), r.stream.Synchronize(ctx))
}

// TestRelayed: what a handler, a close or code of Go orders is no race.
func TestRelayed(t *testing.T) {
	shared, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(shared)
	all := map[string]func(ctx context.Context, r *relayed) error{
		"handler": func(ctx context.Context, r *relayed) error {
			if r.comm.Rank() == 1 {
				return nil
			}
			return errors.Join(r.launch(r.stream, "handlerFills", r.service.Fifo(), r.port), r.stream.Synchronize(ctx))
		},
		"close": func(ctx context.Context, r *relayed) error {
			if r.comm.Rank() == 1 {
				return nil
			}
			return errors.Join(r.launch(r.stream, "exchangeOnly", r.port), r.stream.Synchronize(ctx), r.service.Close(), r.ports.Close(), gpu.CopyIn(r.b, make([]byte, 3*4096)))
		},
		"memory of the host": func(ctx context.Context, r *relayed) error {
			w, err := r.comm.Device().WrapHost(shared)
			if err != nil {
				return err
			}
			err = errors.Join(r.launch(r.stream, "hostMemory", r.port, w, uint32(r.comm.Rank())), r.stream.Synchronize(ctx), r.comm.Barrier(ctx))
			return errors.Join(err, w.Close())
		},
	}
	for told := range writesThenTells {
		for name, kernel := range map[string]string{"read": "readBehind", "put": "putBehind"} {
			all[name+" behind Go, told by a "+told] = func(ctx context.Context, r *relayed) error {
				if r.comm.Rank() == 1 {
					return nil
				}
				return r.byGo(ctx, kernel, told)
			}
		}
	}
	for name, does := range all {
		for _, over := range portTransports() {
			t.Run(name+"/"+over.String(), func(t *testing.T) {
				for _, race := range runOver(t, over, func(ctx context.Context, comm *communicator.Communicator) error {
					r, err := newRelayed(ctx, comm)
					if err != nil {
						return err
					}
					return errors.Join(does(ctx, r), comm.Barrier(ctx), r.service.Close())
				}) {
					t.Errorf("%v", race)
				}
			})
		}
	}
}
