package metrics_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice/metrics"
)

var _ metrics.PoolSource = (*communicator.Communicator)(nil)

// fixedPool is a source that never changes, or is closed.
type fixedPool struct {
	stats channel.PipePoolStats
	err   error
}

func (f fixedPool) PipePool() (channel.PipePoolStats, error) { return f.stats, f.err }

func TestPipePool(t *testing.T) {
	const want = `
# HELP mscclgo_pipe_pool_asked_total Messages that were to borrow a lot.
# TYPE mscclgo_pipe_pool_asked_total counter
mscclgo_pipe_pool_asked_total{rank="0"} 6
# HELP mscclgo_pipe_pool_bytes Device memory of shared pipes.
# TYPE mscclgo_pipe_pool_bytes gauge
mscclgo_pipe_pool_bytes{rank="0"} 1
# HELP mscclgo_pipe_pool_end_bytes Bytes of it for the ends of pipes.
# TYPE mscclgo_pipe_pool_end_bytes gauge
mscclgo_pipe_pool_end_bytes{rank="0"} 2
# HELP mscclgo_pipe_pool_lent_lots Lots that messages under way have.
# TYPE mscclgo_pipe_pool_lent_lots gauge
mscclgo_pipe_pool_lent_lots{rank="0"} 5
# HELP mscclgo_pipe_pool_lots Lots that long messages may borrow.
# TYPE mscclgo_pipe_pool_lots gauge
mscclgo_pipe_pool_lots{rank="0"} 4
# HELP mscclgo_pipe_pool_refused_total Messages for which no free lot was found.
# TYPE mscclgo_pipe_pool_refused_total counter
mscclgo_pipe_pool_refused_total{rank="0"} 7
# HELP mscclgo_pipe_pool_taken_bytes Bytes that ends of pipes take.
# TYPE mscclgo_pipe_pool_taken_bytes gauge
mscclgo_pipe_pool_taken_bytes{rank="0"} 3
`
	c := metrics.NewPipePool("0", fixedPool{stats: channel.PipePoolStats{Bytes: 1, ForEnds: 2, Taken: 3, Lots: 4, Lent: 5, Asked: 6, Refused: 7}})
	testerr.Report(t, testutil.CollectAndCompare(c, strings.NewReader(want)))
	if n := testutil.CollectAndCount(metrics.NewPipePool("0", fixedPool{err: errors.New("closed")})); n != 0 {
		t.Errorf("a closed communicator has %d metrics", n)
	}
}
