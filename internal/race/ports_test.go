package race_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// TestStreamPorts has two ranks do all operations of ports on streams, in graphs that are launched
// again and again. Each flush and each wait orders what it should, so that nothing is reported.
func TestStreamPorts(t *testing.T) {
	for _, over := range portTransports() {
		t.Run(over.String(), func(t *testing.T) {
			for _, r := range runOver(t, over, streamPorts) {
				t.Errorf("%v", r)
			}
		})
	}
}

// TestStreamPortMistakes has a stream overwrite what a port is still sending, and use what it is
// still getting.
func TestStreamPortMistakes(t *testing.T) {
	for name, mistake := range map[string]func(s *gpu.Stream, to communicator.StreamPort, b *gpu.Buffer) error{
		"fill of a stream": func(s *gpu.Stream, to communicator.StreamPort, b *gpu.Buffer) error {
			return errors.Join(to.Put(4096, 0, 4096), s.Fill(b, 0, 1, 4096), to.Flush())
		},
		"copy of a stream": func(s *gpu.Stream, to communicator.StreamPort, b *gpu.Buffer) error {
			return errors.Join(to.Get(4096, 0, 4096), s.Copy(b, 8192, b, 0, 4096), to.Flush())
		},
	} {
		for _, over := range portTransports() {
			t.Run(name+"/"+over.String(), func(t *testing.T) {
				races := runOver(t, over, func(ctx context.Context, comm *communicator.Communicator) error {
					service, err := comm.ProxyService(ctx, proxyservice.ServiceOptions{})
					if err != nil {
						return err
					}
					defer service.Close()
					b, uploadErr := gpu.Upload(comm.Device(), make([]byte, 3*4096))
					stream, streamErr := comm.NewStream()
					if err := errors.Join(uploadErr, streamErr); err != nil {
						return err
					}
					ports, err := comm.PortChannels(ctx, service, b, communicator.PortChannelOptions{OnStream: true})
					if err == nil && comm.Rank() == 0 {
						// In a graph, so that the stream has all of it before the proxy has served any.
						err = errors.Join(stream.BeginCapture(), mistake(stream, ports.OnStream(stream, 0, 1), b))
						graph, endErr := stream.EndCapture()
						if err = errors.Join(err, endErr); err == nil {
							err = errors.Join(graph.Launch(stream), stream.Synchronize(ctx), graph.Close())
						}
					}
					return errors.Join(err, comm.Barrier(ctx))
				})
				if len(races) != 1 {
					t.Fatalf("there are %d races: %v", len(races), races)
				}
				text := races[0].String()
				for _, want := range []string{name, "by a copy of a proxy on emu:0, which ports.cu:"} {
					if !strings.Contains(text, want) {
						t.Errorf("%q is not in: %s", want, text)
					}
				}
			})
		}
	}
}

// streamPorts has rank 0 change its memory and rank 1's in turn with rank 1, by operations of streams.
func streamPorts(ctx context.Context, comm *communicator.Communicator) (err error) {
	const part = 2048
	d := comm.Device()
	local, localErr := gpu.Upload(d, make([]byte, 4*part))
	inbox, inboxErr := gpu.Upload(d, make([]byte, 4*part))
	stream, streamErr := comm.NewStream()
	service, serviceErr := comm.ProxyService(ctx, proxyservice.ServiceOptions{})
	if err := errors.Join(localErr, inboxErr, streamErr, serviceErr, d.Internal().PrepareAtomics()); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, service.Close()) }()
	ports, err := comm.PortChannels(ctx, service, local, communicator.PortChannelOptions{Inbox: inbox, OnStream: true})
	if err != nil {
		return err
	}
	to := ports.OnStream(stream, 0, 1-comm.Rank())
	steps := []func() error{
		// The source is written again behind a flush, and what was got is read behind one.
		func() error { return to.Put(0, 0, part) },
		to.Flush,
		func() error { return stream.Fill(local, 0, 2, part) },
		func() error { return to.PutWithSignalAndFlush(part, 0, part) },
		func() error { return stream.Fill(local, 0, 3, part) },
		func() error { return to.Get(0, part, part) },
		to.Flush,
		func() error { return stream.Copy(local, 0, local, part, part) },
		func() error { return to.GetAndFlush(part, 2*part, part) },
		func() error { return stream.Copy(local, 0, local, 2*part, part) },
		// Words are stored to, and changed, behind puts of them.
		func() error { return to.Put(2*part, 0, part) },
		func() error { return to.Store(2*part, 5) },
		func() error { return to.StoreAndFlush(2*part+8, 6) },
		func() error { return to.Add(2*part, 1) },
		func() error { return to.AddAndFlush(2*part+8, 1) },
		func() error { return to.Exchange(2*part+16, 7, 3*part) },
		to.Flush,
		func() error { return stream.Internal().Add64(local, 3*part, 1) },
		func() error { return to.ExchangeAndFlush(2*part+24, 7, 3*part) },
		func() error { return stream.Internal().Add64(local, 3*part, 1) },
		func() error { return to.PutWithSignal(3*part, 0, part) },
		to.Signal,
		to.Wait, // what the other rank changes
		func() error { return stream.Copy(local, 0, inbox, 0, 4*part) },
		to.Signal,
	}
	if comm.Rank() == 1 {
		steps = []func() error{
			to.Wait, to.Wait, to.Wait,
			func() error { return stream.Copy(local, 0, inbox, 0, 4*part) },
			func() error { return stream.Fill(inbox, 0, 4, 4*part) },
			func() error { return to.PutWithSignal(0, 0, 4*part) },
			to.Wait,
		}
	}
	err = stream.BeginCapture()
	for _, step := range steps {
		err = errors.Join(err, step())
	}
	graph, captureErr := stream.EndCapture()
	if err := errors.Join(err, captureErr); err != nil {
		return err
	}
	for range 5 {
		err = errors.Join(err, graph.Launch(stream))
	}
	return errors.Join(err, comm.Barrier(ctx), to.Flush(), stream.Synchronize(ctx), comm.Barrier(ctx), graph.Close())
}
