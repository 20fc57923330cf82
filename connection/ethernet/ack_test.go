package ethernet

import (
	"errors"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
)

// TestAcknowledgedUnsent has a peer acknowledge a write whose bytes are being copied by the device
// yet. The source is free once they are sent.
func TestAcknowledgedUnsent(t *testing.T) {
	b := newRank(t, 1, loopback())
	src := memory(t, b, onDevice, 64)
	r := newRogue(t, b, 1)
	release := testlink.HoldStream(t, r.conn.d.senders[0].stream)
	testerr.Check(t, r.conn.Write(rogueMemory(t, r, b), 0, src, 0, 64))
	r.awaitTaken(t, 1)
	mark := testerr.Must(r.conn.Mark())(t)
	before := r.conn.d.progress.Load()
	r.acknowledge(t, 1)
	testlink.Eventually(t, "the acknowledgement is read", func() bool { return r.conn.d.progress.Load() != before })
	if done, err := mark.Done(); done || err != nil {
		t.Errorf("a mark behind a write that was not sent: %v, %v", done, err)
	}
	release()
	testlink.Eventually(t, "the mark is reached", func() bool {
		return testerr.Must(mark.Done())(t)
	})
}

// TestSpeaksOfUnsent has a peer acknowledge, or answer, what waits for the answer to a read.
func TestSpeaksOfUnsent(t *testing.T) {
	for says, lie := range map[string]func(*rogue){
		"2 operations after 0, 1 were sent": func(r *rogue) { r.acknowledge(t, 2) },
		"answers operation 1": func(r *rogue) {
			r.send(t, 0, message.Frame{Kind: message.Answer, Op: 1, Length: 8, Total: 8}, make([]byte, 8)...)
		},
	} {
		b := newRank(t, 1, loopback())
		mine := memory(t, b, onDevice, 64)
		r := newRogue(t, b, 1)
		theirs := rogueMemory(t, r, b)
		testerr.Check(t, r.conn.Read(mine, 0, theirs, 0, 64))
		testerr.Check(t, r.conn.Exchange(mine, 0, theirs, 0, 1))
		r.awaitTaken(t, 1)
		lie(r)
		testerr.Expect(t, failed(t, r.conn), mscclgo.ErrRemote, says)
	}
}

// TestSlowDeviceOfWriter holds the device of a rank that writes, and has asked for more behind that.
// That is not the peer's fault.
func TestSlowDeviceOfWriter(t *testing.T) {
	for _, sockets := range []int{1, 2} {
		o := loopback()
		o.Timeout, o.Sockets = 200*time.Millisecond, sockets
		a, b := newRank(t, 0, o), newRank(t, 1, loopback())
		ab, _ := connect(t, a, b)
		src, dst := memory(t, a, onDevice, 64), imported(t, a, memory(t, b, onDevice, 64))
		var release []func()
		for _, s := range ab.d.senders {
			release = append(release, testlink.HoldStream(t, s.stream))
		}
		for i := range uint64(4) {
			testerr.Check(t, errors.Join(ab.Write(dst, 0, src, 0, 64), ab.Read(src, 0, dst, 0, 64), ab.Store(dst, 0, i)))
		}
		time.Sleep(3 * o.Timeout)
		for _, let := range release {
			let()
		}
		if err := ab.Flush(t.Context()); err != nil {
			t.Errorf("with %d sockets: %v", sockets, err)
		}
	}
}
