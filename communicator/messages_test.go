package communicator

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/internal/watch"
)

func FuzzContribution(f *testing.F) {
	o := newOne()
	k := o.begin("share", "communicator: share")
	f.Add(k.contribution(watch.Call{Number: 41, Digest: 7, Text: "all-reduce of 1024 f32, sum"}, []byte("a memory"), nil))
	f.Add(k.contribution(watch.Call{Text: "unprintable\x00"}, nil, nil))
	f.Add(k.contribution(watch.Call{}, nil, errors.New("no memory")))
	f.Fuzz(func(t *testing.T, b []byte) {
		read := func(b []byte) ([]byte, bool) {
			h, content, reason, err := k.read(0, b)
			is := &call{c: o, name: h.name, of: &operation{name: h.operation, number: h.number, step: h.step}}
			return is.contribution(h.last, content, nil), err == nil && reason == nil
		}
		if encoded, ok := read(b); ok {
			again, ok := read(encoded)
			if diff := cmp.Diff(encoded, again); !ok || diff != "" {
				t.Errorf("decoded and encoded again (-want +got):\n%s", diff)
			}
		}
	})
}

// newOne returns as much of a communicator as a call needs to read contributions.
func newOne() *Communicator {
	return &Communicator{boot: one{}}
}

// one is the bootstrap of a group of one rank.
type one struct{ fullBootstrap }

func (one) Rank() int { return 0 }
func (one) Size() int { return 1 }

// receiver is a bootstrap that has received a message.
type receiver struct {
	one
	message []byte
}

func (r receiver) Recv(context.Context, int, uint64) ([]byte, error) { return r.message, nil }

// TestMeetingBound has an endpoint of a byte more than one may have.
func TestMeetingBound(t *testing.T) {
	for extra := range 2 {
		b := meetingWire.Marshal(&meetingMessage{from: 1, to: 3, content: make([]byte, maxDescription+extra)})
		m := newMeeting(&Communicator{boot: receiver{message: b}}, "Connect", "connect", 0, 0, maxDescription)
		if _, err := m.receiveNext(t.Context()); (err == nil) != (extra == 0) {
			t.Errorf("%d bytes too many: %v", extra, err)
		}
	}
}
