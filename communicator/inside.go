package communicator

import (
	"context"

	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// Internal is for packages of this module.
func (c *Communicator) Internal() inside.Communicator[*Communicator, layout.Group, *proxyservice.Threads] {
	return communicatorInside{c}
}

// serviceRoom is room in a proxy service.
type serviceRoom = inside.Room[*registeredmem.Memory, *semaphore.Host2Device]

type communicatorInside struct{ *Communicator }

func (c communicatorInside) Keep(create func() inside.Kept[*Communicator]) inside.Kept[*Communicator] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil {
		c.kept = create()
	}
	return c.kept
}

func (c communicatorInside) Threads() *proxyservice.Threads { return c.options.Threads }

func (c communicatorInside) Traced() bool { return c.tracer != nil }

func (c communicatorInside) UntilFailure(ctx context.Context) (context.Context, context.CancelFunc) {
	return c.untilFailure(ctx)
}

func (c communicatorInside) Patient(ctx context.Context) (context.Context, context.CancelFunc) {
	return c.patient(ctx)
}

func (c communicatorInside) Operation(ctx context.Context, name string) context.Context {
	if c.operation(ctx) != nil {
		return ctx
	}
	return context.WithValue(ctx, operationKey{}, c.begin(name, "").of)
}

func (c communicatorInside) OwnError(err error) error { return c.ours(err) }

func (c communicatorInside) Sharers() int { return c.sharers }

func (c communicatorInside) Shared() bool { return c.crowded }

func (c communicatorInside) Beside() bool {
	return len(c.beside) > 0 && c.turn() == nil // what is explored is emulated, and waits in its turns alone
}

func (c communicatorInside) TakeDevice() { c.ownsDevice = false }
