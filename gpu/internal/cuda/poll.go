package cuda

import (
	"context"
	"runtime"
	"time"

	"github.com/mscclgo/mscclgo"
)

// poll asks query until it says done or fails, or ctx ends. The driver's own
// waits cannot be interrupted, so this asks: without rest at first, since most
// waits are short, then with pauses of an eighth of the time waited so far, so
// that a long wait costs no processor and is noticed soon after its end.
func (p *primary) poll(ctx context.Context, what string, query func() (bool, error)) error {
	const (
		restless = 50 * time.Microsecond
		longest  = 500 * time.Microsecond
	)
	start := time.Now()
	for {
		if done, err := query(); done || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return mscclgo.FromContext(ctx, p.op("%s", what),
				"the work before it has not ended; a kernel may be waiting for a peer")
		}
		if waited := time.Since(start); waited < restless {
			runtime.Gosched()
		} else {
			time.Sleep(min(waited/8, longest))
		}
	}
}
