package shm

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/fdpass"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
)

func TestConnectErrors(t *testing.T) {
	a, b := newRank(t, 0, Options{}), newRank(t, 1, Options{})
	good := testlink.Marshal(t, b.e)
	changed := func(change func(*description)) []byte {
		d := b.e.about
		change(&d)
		return d.encode()
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	closed, err := a.t.NewEndpoint()
	testerr.Check(t, err)
	for range 2 {
		testerr.Check(t, closed.Close())
	}
	for name, c := range map[string]struct {
		e    *endpoint
		ctx  context.Context
		data []byte
		kind mscclgo.Kind
		says string
	}{
		"no bytes":         {a.e, t.Context(), nil, mscclgo.ErrInvalid, "do not describe an endpoint"},
		"cut short":        {a.e, t.Context(), good[:len(good)-1], mscclgo.ErrInvalid, "do not describe an endpoint"},
		"another group":    {a.e, t.Context(), changed(func(d *description) { d.group[0]++ }), mscclgo.ErrInvalid, "group"},
		"another host":     {a.e, t.Context(), changed(func(d *description) { d.host = "other" }), mscclgo.ErrUnsupported, "the peer is on host"},
		"no host":          {a.e, t.Context(), changed(func(d *description) { d.host = "" }), mscclgo.ErrInvalid, "host's identity is empty"},
		"rank 2^31":        {a.e, t.Context(), changed(func(d *description) { d.rank = 1 << 31 }), mscclgo.ErrInvalid, "out of range"},
		"a strange socket": {a.e, t.Context(), changed(func(d *description) { d.socket = "/tmp/x" }), mscclgo.ErrInvalid, "name of a socket"},
		"nobody there": {a.e, t.Context(), changed(func(d *description) { d.socket = fmt.Sprintf("mscclgo-%032x", 1) }), mscclgo.ErrRemote,
			"has another network namespace"},
		"another endpoint": {a.e, t.Context(), changed(func(d *description) { d.id[0]++ }), mscclgo.ErrRemote, "does not exist"},
		"ended context":    {a.e, ended, good, mscclgo.ErrAborted, "not begun"},
		"closed endpoint":  {closed.(*endpoint), t.Context(), good, mscclgo.ErrInvalid, "the endpoint is closed"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.e.Connect(c.ctx, c.data)
			testerr.Expect(t, err, c.kind, c.says, "rank 0")
			if n := strings.Count(err.Error(), "shm: connect"); n > 1 {
				t.Errorf("the error names the call %d times: %v", n, err)
			}
		})
	}
	testerr.Check(t, b.t.Close())
	_, err = a.e.Connect(t.Context(), good)
	testerr.Expect(t, err, mscclgo.ErrRemote, "rank 0, peer 1")
	_, err = b.e.Connect(t.Context(), testlink.Marshal(t, a.e))
	testerr.Expect(t, err, mscclgo.ErrInvalid, "the transport is closed")
	_, err = b.t.NewEndpoint()
	testerr.Expect(t, err, mscclgo.ErrInvalid, "the transport is closed")
}

// TestSilentPeer connects to a peer that does not answer.
func TestSilentPeer(t *testing.T) {
	a, b := newRank(t, 0, Options{}), newRank(t, 1, Options{})
	silent := make(chan struct{})
	server, err := fdpass.Listen(b.t.key, 0, b.t.rank.Log, func([]byte, bool) fdpass.Answer {
		<-silent
		return fdpass.Answer{Body: []byte("too late")}
	})
	testerr.Check(t, err)
	defer server.Close()
	defer close(silent)
	d := b.e.about
	d.socket = server.Name()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = a.e.Connect(ctx, d.encode())
	testerr.Expect(t, err, mscclgo.ErrTimeout, "rank 0, peer 1")
}

// TestOtherSecret has a peer whose group has the same number and another secret.
func TestOtherSecret(t *testing.T) {
	a, b := newRank(t, 0, Options{}), newRank(t, 1, Options{})
	a.t.key.Secret[0]++
	_, err := a.e.Connect(t.Context(), testlink.Marshal(t, b.e))
	testerr.Expect(t, err, mscclgo.ErrRemote, "rank 0, peer 1", "secret")
}
