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

// A mailbox holds the messages that arrived and are not received yet, and the
// receivers whose message has not arrived. One of the two queues of a key is
// always empty.
type mailbox struct {
	mu      sync.Mutex
	mail    map[mailKey][][]byte
	waiting map[mailKey][]*receiver
	held    map[int]int // bytes by peer
}

// A receiver is one Recv that waits.
type receiver struct {
	message []byte
	done    chan struct{} // closed once message is set
}

func newMailbox() *mailbox {
	return &mailbox{
		mail:    map[mailKey][][]byte{},
		waiting: map[mailKey][]*receiver{},
		held:    map[int]int{},
	}
}

// put hands message to the oldest receiver of key, or keeps it. It reports false
// if the peer's messages have become too many.
func (m *mailbox) put(key mailKey, message []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.waiting[key]; len(w) > 0 {
		w[0].message = message
		close(w[0].done)
		m.dequeue(key, w)
		return true
	}
	if m.held[key.peer]+len(message)+perMessage > maxUnreceived {
		return false
	}
	m.held[key.peer] += len(message) + perMessage
	m.mail[key] = append(m.mail[key], message)
	return true
}

// dequeue drops the first of key's receivers.
func (m *mailbox) dequeue(key mailKey, w []*receiver) {
	if len(w) == 1 {
		delete(m.waiting, key)
		return
	}
	m.waiting[key] = w[1:]
}

// get takes the oldest message of key, or returns a receiver that gets the next.
func (m *mailbox) get(key mailKey) (message []byte, r *receiver) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.mail[key]
	if len(q) == 0 {
		r = &receiver{done: make(chan struct{})}
		m.waiting[key] = append(m.waiting[key], r)
		return nil, r
	}
	message = q[0]
	q[0] = nil
	if len(q) == 1 {
		delete(m.mail, key)
	} else {
		m.mail[key] = q[1:]
	}
	m.release(key.peer, len(message)+perMessage)
	return message, nil
}

// has reports whether a message of key waits for its receiver.
func (m *mailbox) has(key mailKey) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.mail[key]) > 0
}

// release subtracts n from the held bytes of a peer.
func (m *mailbox) release(peer, n int) {
	if m.held[peer] -= n; m.held[peer] == 0 {
		delete(m.held, peer)
	}
}

// cancel ends r's wait, or reports that its message has arrived.
func (m *mailbox) cancel(key mailKey, r *receiver) (came bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, w := range m.waiting[key] {
		if w == r {
			rest := append(m.waiting[key][:i:i], m.waiting[key][i+1:]...)
			if len(rest) == 0 {
				delete(m.waiting, key)
			} else {
				m.waiting[key] = rest
			}
			return false
		}
	}
	return true
}

// drop forgets the messages of key.
func (m *mailbox) drop(key mailKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, message := range m.mail[key] {
		m.release(key.peer, len(message)+perMessage)
	}
	delete(m.mail, key)
}
