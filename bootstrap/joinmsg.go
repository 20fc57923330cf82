package bootstrap

import (
	"fmt"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/watch"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// MaxSize is the largest number of ranks a group may have.
const MaxSize = 1 << 15

// A joinMessage is what a rank sends to the rendezvous.
type joinMessage struct {
	size    int
	tls     bool          // the rank encrypts what it sends to its peers
	left    time.Duration // until the rank gives up
	silence time.Duration // for which a rank that gives no sign of life is not taken for stopped; 0 for ever
	process [16]byte      // random: distinguishes a rank that tries again from a second one
	program [16]byte      // the same in all joins of an operating system's process
	addr    string        `wire:"263"` // where the rank's peers reach it: a host of maxHost, brackets, a colon and a port
}

var joinCodec = wire.For[joinMessage]()

func (m joinMessage) encode() []byte { return joinCodec.Marshal(&m) }

func decodeJoin(b []byte) (joinMessage, error) {
	m, err := joinCodec.Unmarshal(b)
	switch {
	case err != nil:
	case m.silence > 0 && m.silence < minHeartbeat:
		err = fmt.Errorf("a heartbeat time-out of %v, at least %v", m.silence, minHeartbeat)
	case m.size > MaxSize:
		err = fmt.Errorf("world size %d, at most %d", m.size, MaxSize)
	default:
		err = checkAddr(m.addr)
	}
	if err != nil {
		return m, fmt.Errorf("malformed join: %w", err)
	}
	return m, nil
}

func checkAddr(addr string) error {
	host, port, err := splitHostPort(addr)
	if err == nil && (host == "" || port == 0) {
		err = fmt.Errorf("address %q lacks a host or a port", addr)
	}
	return err
}

// A table has the addresses of all ranks, in rank order.
type table struct {
	addrs []string `wire:"32768"` // MaxSize
}

var tableCodec = wire.For[table]()

func encodeTable(addrs []string) []byte { return tableCodec.Marshal(&table{addrs}) }

func decodeTable(b []byte, size int) ([]string, error) {
	t, err := tableCodec.Unmarshal(b)
	if err == nil && len(t.addrs) != size {
		err = fmt.Errorf("%d ranks, not %d", len(t.addrs), size)
	}
	for rank := 0; err == nil && rank < size; rank++ {
		if wrong := checkAddr(t.addrs[rank]); wrong != nil {
			err = fmt.Errorf("rank %d: %w", rank, wrong)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("malformed table: %w", err)
	}
	return t.addrs, nil
}

// refusal is the reason why a group could not form. rank is whose fault it is, or NoRank.
func refusal(kind mscclgo.Kind, rank int, text string) watch.Fact {
	return watch.About(toRendezvous, kind, rank, text)
}

// without is the refusal where a rank failed while the group formed.
func without(rank int, format string, args ...any) watch.Fact {
	return refusal(mscclgo.ErrRemote, rank, fmt.Sprintf("rank %d, without which the group cannot form, ", rank)+fmt.Sprintf(format, args...))
}

// clip shortens s to at most n bytes.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n-3] + "..."
}
