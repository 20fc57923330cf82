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

const maxAddr = maxHost + 8 // a host, brackets, a colon and a port

// A joinMessage is what a rank sends to the rendezvous.
type joinMessage struct {
	size    int
	tls     bool          // the rank encrypts what it sends to its peers
	left    time.Duration // until the rank gives up
	silence time.Duration // for which a rank that gives no sign of life is not taken for stopped; 0 for ever
	process [16]byte      // random: distinguishes a rank that tries again from a second one
	program [16]byte      // the same in all joins of an operating system's process
	addr    string        // where the rank's peers reach it
}

func (m joinMessage) encode() []byte {
	var w wire.Writer
	w.U32(uint32(m.size))
	w.Bool(m.tls)
	w.U64(uint64(m.left / time.Millisecond))
	w.U64(uint64(m.silence / time.Millisecond))
	w.Raw(m.process[:])
	w.Raw(m.program[:])
	w.String(m.addr)
	return w.Bytes()
}

func decodeJoin(b []byte) (joinMessage, error) {
	r := wire.NewReader(b)
	size := r.U32()
	m := joinMessage{tls: r.Bool()}
	left := r.U64()
	silence := r.U64()
	copy(m.process[:], r.Raw(len(m.process)))
	copy(m.program[:], r.Raw(len(m.program)))
	m.addr = r.String(maxAddr)
	if err := r.End(); err != nil {
		return m, fmt.Errorf("malformed join: %w", err)
	}
	// Time beyond a month is a month.
	const month = 31 * 24 * 3600 * 1000
	m.left = time.Duration(min(left, month)) * time.Millisecond
	m.silence = time.Duration(min(silence, month)) * time.Millisecond
	if m.silence > 0 && m.silence < minHeartbeat {
		return m, fmt.Errorf("malformed join: a heartbeat time-out of %v, at least %v", m.silence, minHeartbeat)
	}
	if size > MaxSize {
		return m, fmt.Errorf("malformed join: world size %d, at most %d", size, MaxSize)
	}
	m.size = int(size)
	if err := checkAddr(m.addr); err != nil {
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

// encodeTable encodes the addresses of all ranks, in rank order.
func encodeTable(addrs []string) []byte {
	var w wire.Writer
	w.U32(uint32(len(addrs)))
	for _, a := range addrs {
		w.String(a)
	}
	return w.Bytes()
}

func decodeTable(b []byte, size int) ([]string, error) {
	r := wire.NewReader(b)
	if n := r.U32(); r.Err() == nil && n != uint32(size) {
		return nil, fmt.Errorf("malformed table: %d ranks, not %d", n, size)
	}
	addrs := make([]string, size)
	for i := range addrs {
		addrs[i] = r.String(maxAddr)
		if r.Err() == nil {
			if err := checkAddr(addrs[i]); err != nil {
				return nil, fmt.Errorf("malformed table: rank %d: %w", i, err)
			}
		}
	}
	if err := r.End(); err != nil {
		return nil, fmt.Errorf("malformed table: %w", err)
	}
	return addrs, nil
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
