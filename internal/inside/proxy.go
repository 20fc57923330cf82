package inside

import "github.com/mscclgo/mscclgo/internal/native"

// Service is the inside of a *proxyservice.ProxyService. D is *gpu.Device; M and S are as in a Room.
type Service[D, M, S any] interface {
	// Tell has the service, which is not started yet, tell of itself by t.
	Tell(t Telling)
	// Device returns the service's device, or nil if it was not made by New.
	Device() D
	// Closed reports whether the service was closed.
	Closed() bool
	// InHandler reports whether the calling thread is the service's, which calls its handler.
	InHandler() bool
	// Still returns how often the service has found nothing to do, or ProxyEnded, a number that
	// changes with each trigger that it takes, and whether nothing is in its backlogs. It reads
	// taken first and done last. So if two calls return the same taken, and the second returns
	// rounds two higher, done of the second tells whether all that the service took is done.
	Still() (rounds, taken uint64, done bool)
	// Room returns room in the service, none at first.
	Room() Room[M, S]
}

// ProxyEnded stands for the rounds of a proxy that was closed.
const ProxyEnded = 1<<64 - 1

// Telling is how a proxy service tells of itself.
type Telling struct {
	// Explain is what its Err, and the error of it that Stop and Close return, pass through.
	Explain func(error) error
	// Channel returns the name that errors have for a channel. The number is the Channel of its semaphore's
	// Watch. Where Channel is nil, or the number 0, errors have the channel's number in the service.
	Channel func(number uint32) string
	// Trace is the trace to which it adds what it does, or nil.
	Trace *native.Trace
}

// Room is what a proxy service keeps for channels until their peers are known to have made their
// ends: a service keeps what it has served. M is *registeredmem.Memory, and S *semaphore.Host2Device.
// One goroutine at a time uses it.
type Room[M, S any] interface {
	// Semaphore keeps room for one more semaphore, whose connection is new too, or returns the error of AddSemaphore.
	Semaphore() error
	// Memories keeps room for each memory that the service does not have and that is not nil,
	// and for so many more, or returns the error of AddMemory.
	Memories(memories []M, more int) error
	// Add adds a semaphore and memories in that room.
	Add(semaphore S, memories []M) error
	// Leave gives up what is left of the room.
	Leave()
}
