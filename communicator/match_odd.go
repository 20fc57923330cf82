package communicator

import (
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// oddPatience bounds how long a rank that has found a difference waits for the calls of
// the others.
const oddPatience = 100 * time.Millisecond

// odd returns the one rank of this host whose call of a number is unlike that of the
// others, or NoRank if that cannot be told. It waits for ranks that have not made the call.
func (m *matcher) odd(number uint64) int {
	for end := time.Now().Add(oddPatience); ; time.Sleep(time.Millisecond) {
		texts, known := m.texts(number)
		if known < len(m.members) && !time.Now().After(end) {
			continue
		}
		if odd, sure := watch.OddCall(texts); sure {
			return m.members[odd]
		}
		return mscclgo.NoRank
	}
}

// texts returns what the ranks of this host call, by index, and of how many that is known.
func (m *matcher) texts(number uint64) (texts []string, known int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	texts = make([]string, len(m.members))
	if m.closed || m.board.board == nil {
		return texts, len(texts)
	}
	for i := range texts {
		var ok bool
		if texts[i], ok = m.board.text(i, number); ok {
			known++
		}
	}
	return texts, known
}
