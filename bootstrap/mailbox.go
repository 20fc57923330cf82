package bootstrap

import "sync"

// maxUnreceived is how many bytes of one peer's messages may wait for a Recv.
// Beyond it the group fails: to drop a message, or to stop the connection with its
// collectives, would be worse.
const maxUnreceived = 256 << 20

// perMessage is what a waiting message counts in addition to its bytes.
const perMessage = 64

// A mailKey selects the messages that a receiver takes.
type mailKey struct {
	peer int
	kind frameKind // frameData or frameCollective
	tag  uint64
}

// A mailbox holds the messages that have arrived and are not received yet.
type mailbox struct {
	mu   sync.Mutex
	mail map[mailKey][][]byte
	held map[int]int   // bytes by peer
	came chan struct{} // closed and replaced when a message arrives
}

func newMailbox() *mailbox {
	return &mailbox{mail: map[mailKey][][]byte{}, held: map[int]int{}, came: make(chan struct{})}
}

// put keeps message for a receiver of key. It reports false if the peer's messages have become too many.
func (m *mailbox) put(key mailKey, message []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held[key.peer]+len(message)+perMessage > maxUnreceived {
		return false
	}
	m.held[key.peer] += len(message) + perMessage
	m.mail[key] = append(m.mail[key], message)
	close(m.came)
	m.came = make(chan struct{})
	return true
}

// take returns the oldest message of key. If there is none, it returns a channel that is closed when one of any key arrives.
func (m *mailbox) take(key mailKey) (message []byte, came <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.mail[key]
	if len(q) == 0 {
		return nil, m.came
	}
	m.release(key, q[:1])
	message, q[0] = q[0], nil
	if len(q) == 1 {
		delete(m.mail, key)
	} else {
		m.mail[key] = q[1:]
	}
	return message, nil
}

// has reports whether a message of key waits for its receiver.
func (m *mailbox) has(key mailKey) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.mail[key]) > 0
}

// drop forgets the messages of key.
func (m *mailbox) drop(key mailKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.release(key, m.mail[key])
	delete(m.mail, key)
}

// release no longer counts messages of a key.
func (m *mailbox) release(key mailKey, messages [][]byte) {
	for _, message := range messages {
		m.held[key.peer] -= len(message) + perMessage
	}
	if m.held[key.peer] == 0 {
		delete(m.held, key.peer)
	}
}
