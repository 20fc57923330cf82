package communicator

import (
	"time"

	"github.com/mscclgo/mscclgo"
)

// oddPatience bounds how long a rank that has found a difference waits for the calls of
// the others.
const oddPatience = 100 * time.Millisecond

// odd returns the one rank of this host whose call of a number is unlike that of the
// others, or NoRank if that cannot be told. It waits for ranks that have not made the call.
func (m *matcher) odd(number uint64) int {
	for end := time.Now().Add(oddPatience); ; time.Sleep(time.Millisecond) {
		texts, known := m.texts(number)
		if known == len(m.members) || time.Now().After(end) {
			return oddOne(m.members, texts)
		}
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

// oddOne returns the member whose text only it has, where at least two others have another
// in common and nobody has a third. Unknown texts are empty.
func oddOne(members []int, texts []string) int {
	count := map[string]int{}
	known := 0
	for _, t := range texts {
		if t != "" {
			count[t]++
			known++
		}
	}
	odd, common := mscclgo.NoRank, 0
	for i, t := range texts {
		if count[t] == 1 && t != "" {
			odd = members[i]
		}
		common = max(common, count[t])
	}
	if known < 3 || common != known-1 {
		return mscclgo.NoRank
	}
	return odd
}
