package surface

import (
	"io"
	"testing"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// TestCloseNil closes what was not made, as a defer ahead of the look at the error does.
func TestCloseNil(t *testing.T) {
	for _, c := range []io.Closer{
		(*bootstrap.Bootstrap)(nil), (*bootstrap.Elastic)(nil), (*bootstrap.Member)(nil), (*bootstrap.Rendezvous)(nil),
		(*collective.Operation)(nil),
		(*communicator.Communicator)(nil), (*communicator.MemoryChannels)(nil), (*communicator.PeerMemory)(nil),
		(*communicator.Pipes)(nil), (*communicator.PortChannels)(nil),
		(*connection.Connection)(nil), (*fifo.Ring)(nil),
		(*gpu.Buffer)(nil), (*gpu.Device)(nil), (*gpu.Event)(nil), (*gpu.Graph)(nil), (*gpu.Module)(nil),
		(*gpu.RaceFinder)(nil), (*gpu.Stream)(nil),
		(*proxyservice.ProxyService)(nil),
		(*registeredmem.Memory)(nil), (*registeredmem.Registry)(nil),
	} {
		if err := c.Close(); err != nil {
			t.Errorf("Close of a %T that is nil: %v", c, err)
		}
	}
	testerr.Report(t, (*collective.Runner)(nil).Close(t.Context()))
	testerr.Report(t, (*collective.Memory)(nil).Close(t.Context()))
}
