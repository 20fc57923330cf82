package cuda

import (
	"context"
	"runtime"
	"time"

	"github.com/mscclgo/mscclgo"
)

// poll calls query until it reports done or fails, or ctx ends. The driver's own waits
// cannot be interrupted. Most waits are short, so poll does not sleep at first; then it
// sleeps for an eighth of the time waited so far, so that a long wait uses little CPU
// time and still ends soon after the work.
func (p *primary) poll(ctx context.Context, what string, query func() (bool, error)) error {
	const (
		busy    = 50 * time.Microsecond
		longest = 500 * time.Microsecond
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
		if waited := time.Since(start); waited < busy {
			runtime.Gosched()
		} else {
			time.Sleep(min(waited/8, longest))
		}
	}
}
