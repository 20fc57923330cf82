package collective_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// TestMemoryOfManyHosts counts what calls with the options that users get take of a device: an all-reduce on many hosts
// of a GPU each, and all kinds on two hosts of several. TestDefaultMemory adds up what all kinds take anywhere. The
// hosts are 16, as more in one process need minutes beside other work; with testgroup.ManyEnv 64.
func TestMemoryOfManyHosts(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("the ranks of a GPU share its memory")
	}
	const most = 256 << 20
	many := make([]int, 16)
	if os.Getenv(testgroup.ManyEnv) != "" {
		many = make([]int, 64)
	}
	for host := range many {
		many[host] = host
	}
	for _, hosts := range [][]int{many, {0, 0, 0, 0, 1, 1, 1, 1}} {
		t.Run(fmt.Sprint(len(hosts), " ranks"), func(t *testing.T) {
			testgroup.RunEach(t, testgroup.Network(hosts...), func(ctx context.Context, comm *communicator.Communicator) error {
				before, _, err := comm.Device().MemoryInfo()
				testerr.Check(t, err)
				o := collective.Options{}
				if len(hosts) == len(many) {
					o.MaxBlocks = 1 // else the process has too many connections
				}
				runner := testerr.Must(collective.New(ctx, comm, o))(t)
				stream := testerr.Must(comm.Device().NewStream())(t)
				m := &member{ctx, comm, runner, stream}
				err = m.manyReduced(1000)
				if err == nil && len(hosts) < len(many) {
					err = errors.Join(
						m.manyExchanged(33), m.manyInPlace(collective.AllGather, 19), m.manyInPlace(collective.ReduceScatter, 19),
						m.manyGathered(11, 1), m.manyScattered(11, 1), m.manyCounts(), m.manyMessages(), m.averages(1000))
				}
				testerr.Check(t, err)
				free, _, err := comm.Device().MemoryInfo()
				testerr.Check(t, err)
				if taken := before - free; taken > most {
					return fmt.Errorf("the calls take %d MiB of rank %d's device, more than %d", taken>>20, comm.Rank(), most>>20)
				}
				return errors.Join(stream.Close(), runner.Close(ctx))
			})
		})
	}
}

// averages makes the reductions whose sums take the most room, of zeros.
func (m *member) averages(n uint64) error {
	size := 2 * n * uint64(m.comm.Size())
	var b [2]*gpu.Buffer
	for i := range b {
		var err error
		if b[i], err = gpu.Upload(m.comm.Device(), make([]byte, size)); err != nil {
			return err
		}
	}
	r, out, in := m.runner, b[1], b[0]
	err := errors.Join(
		r.AllReduce(m.stream, out, in, n, collective.F16, collective.Avg),
		r.ReduceScatter(m.stream, out, in, n, collective.F16, collective.Avg),
		r.Reduce(m.stream, out, in, n, collective.F16, collective.Avg, 0),
		r.AllReduce(m.stream, out, in, n, collective.U8, collective.Avg),
	)
	return errors.Join(err, m.comm.Synchronize(m.ctx, m.stream), b[0].Close(), b[1].Close())
}
