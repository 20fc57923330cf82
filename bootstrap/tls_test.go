package bootstrap

import (
	"crypto/tls"
	"testing"

	"github.com/mscclgo/mscclgo"
)

// A group works under TLS as it does in the clear, and every connection is
// encrypted.
func TestTLS(t *testing.T) {
	bs := groupOf(t, 12, Options{TLS: true})
	ctx := testContext(t)
	each(t, bs, func(b *Bootstrap) error {
		return collectivesOnce(ctx, b, b.Size()-1)
	})
	if err := bs[3].Send(ctx, 11, 1, make([]byte, 4<<20)); err != nil {
		t.Fatal(err)
	}
	if got, err := bs[11].Recv(ctx, 3, 1); err != nil || len(got) != 4<<20 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	for _, b := range bs {
		b.mu.Lock()
		for _, p := range b.peers {
			for c := range p.conns {
				if _, ok := c.nc.(*tls.Conn); !ok {
					t.Errorf("rank %d and rank %d talk over a %T", b.rank, p.rank, c.nc)
				}
			}
		}
		b.mu.Unlock()
	}
	bs[0].Close()
	kill(bs[1])
	for _, b := range bs[2:] {
		awaitDone(t, b)
		wantError(t, b.Err(), mscclgo.ErrRemote, "rank 1 failed")
	}
}

// A group whose ranks disagree on TLS fails at once, on all of them.
func TestTLSOnSomeRanks(t *testing.T) {
	noLeaks(t)
	r := rendezvous(t, quiet)
	bs, errs := connectAll(testContext(t), []Options{
		{Rank: 0, Size: 2, ID: r.ID(), TLS: true}, {Rank: 1, Size: 2, ID: r.ID()}})
	closeAll(bs)
	for _, err := range errs {
		wantError(t, err, mscclgo.ErrInvalid, "rank 0", "rank 1", envTLS)
	}
}

func TestTLSFromEnv(t *testing.T) {
	for value, want := range map[string]bool{"1": true, "0": false, "": false} {
		env, err := FromEnv(environment("RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=1 MSCCLGO_BOOTSTRAP_TLS=" + value))
		if err != nil || env.Options.TLS != want {
			t.Errorf("%q: %v, %v", value, env.Options.TLS, err)
		}
	}
}
