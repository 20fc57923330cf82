package explore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// queued returns a rank that has no kernel of its own: rank 0 puts by its stream, and then overwrites
// what it has put, where it is mended behind a flush; rank 1 waits by its stream, and copies what has
// come.
func queued(mended bool) func(context.Context, *communicator.Communicator) error {
	return func(ctx context.Context, comm *communicator.Communicator) (err error) {
		const part = 64
		buffer, err := gpu.Upload(comm.Device(), make([]byte, 3*part))
		if err != nil {
			return err
		}
		stream, err := comm.NewStream()
		if err != nil {
			return err
		}
		service, err := comm.ProxyService(ctx, proxyservice.ServiceOptions{Direct: channel.HostOnly})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, service.Close()) }()
		ports, err := comm.PortChannels(ctx, service, buffer, communicator.PortChannelOptions{OnStream: true})
		if err != nil {
			return err
		}
		to := ports.OnStream(stream, 0, 1-comm.Rank())
		if comm.Rank() == 0 {
			err = errors.Join(stream.Fill(buffer, 0, 1, part), to.PutWithSignal(part, 0, part))
			if mended {
				err = errors.Join(err, to.Flush())
			}
			err = errors.Join(err, stream.Fill(buffer, 0, 2, part))
		} else {
			err = errors.Join(to.Wait(), stream.Copy(buffer, 2*part, buffer, part, part))
		}
		if err := errors.Join(err, stream.Synchronize(ctx), comm.Barrier(ctx)); err != nil || comm.Rank() == 0 {
			return err
		}
		got := make([]byte, 3*part)
		if err := gpu.CopyOut(got, buffer); err != nil {
			return err
		}
		if !bytes.Equal(got[2*part:], bytes.Repeat([]byte{1}, part)) {
			return fmt.Errorf("%v has come", got[2*part:])
		}
		return nil
	}
}

// TestStreamPorts finds that a stream overwrites what it puts, and nothing where it flushes before.
func TestStreamPorts(t *testing.T) { checkServed(t, queued(false), queued(true)) }
