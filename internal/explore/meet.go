package explore

import "sync"

// meeting is one exchange of all ranks.
type meeting struct {
	arrived int
	began   chan struct{} // closed when all have arrived
	once    sync.Once
	ended   sync.WaitGroup
}

func (m *meeting) begin() { m.once.Do(func() { close(m.began) }) }

// Meet calls exchange, in which all n ranks of a group wait for each other, when all have called
// Meet: the turn goes on among parties that have not. A nil party just calls it.
func (p *Party) Meet(group string, n int, exchange func()) {
	if p == nil {
		exchange()
		return
	}
	p.Step("meet")
	x := p.x
	x.mu.Lock()
	m := x.meetings[group]
	if m == nil {
		m = &meeting{began: make(chan struct{})}
		m.ended.Add(n)
		x.meetings[group] = m
	}
	m.arrived++
	all := m.arrived == n
	if all {
		delete(x.meetings, group)
	}
	x.mu.Unlock()
	// Elsewhere, as the ranks that wait for their turns cannot.
	done := make(chan struct{})
	go func() {
		<-m.began
		exchange()
		close(done)
		m.ended.Done()
	}()
	if all {
		m.begin()
		p.Event()
	}
	p.Until("exchange", false, func() bool {
		select {
		case <-m.began:
			return true
		default:
			return false
		}
	})
	if x.Over() {
		m.begin()
		<-done
		return
	}
	m.ended.Wait()
}

// mail counts the messages of one rank to another.
type mail struct{ sent, received int }

func (x *Explorer) mail(line string) *mail {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.messages[line]
	if m == nil {
		m = &mail{}
		x.messages[line] = m
	}
	return m
}

// Sent is called when a message has been sent on a line, which names sender, receiver and tag.
func (p *Party) Sent(line string) {
	if p != nil {
		m := p.x.mail(line)
		p.x.mu.Lock()
		m.sent++
		p.x.mu.Unlock()
		p.Step("send")
	}
}

// Receive waits until one was sent that Receive has not waited for.
func (p *Party) Receive(line string) {
	if p != nil {
		m := p.x.mail(line)
		take := func() bool {
			p.x.mu.Lock()
			defer p.x.mu.Unlock()
			if m.sent == m.received {
				return false
			}
			m.received++
			return true
		}
		p.Until("receive", false, take)
	}
}
