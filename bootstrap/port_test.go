package bootstrap

import (
	"strconv"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
)

// Two groups have one port. The second cannot form while the first has it, and says so on
// each of its ranks; the first notices nothing.
func TestTwoGroupsOnOnePort(t *testing.T) {
	noLeaks(t)
	ctx := testContext(t)
	first := rendezvous(t, quiet)
	b := make(chan error, 1)
	go func() {
		boot, err := Connect(ctx, Options{Rank: 0, Size: 2, ID: first.ID()})
		if err == nil {
			boot.Close()
		}
		b <- err
	}()
	id, err := NewUniqueID("127.0.0.1:" + strconv.Itoa(int(first.ID().port)))
	if err != nil {
		t.Fatal(err)
	}
	bs, errs := connectAll(ctx, []Options{
		{Rank: 0, Size: 2, ID: id, Timeout: 10 * time.Second}, {Rank: 1, Size: 2, ID: id, Timeout: time.Second},
	})
	closeAll(bs)
	wantError(t, errs[0], mscclgo.ErrSystem, "is another group using the port?")
	wantError(t, errs[1], mscclgo.ErrInvalid, "not the rendezvous of this group")
	last, err := Connect(ctx, Options{Rank: 1, Size: 2, ID: first.ID()})
	if err != nil {
		t.Fatal(err)
	}
	last.Close()
	if err := <-b; err != nil {
		t.Error(err)
	}
}
