package communicator

import "github.com/mscclgo/mscclgo/internal/watch"

const matchOp = "communicator: match a call"

// MatchCall numbers a call that all ranks make in the same order, such as a
// collective on a stream, and compares its description with the other ranks'
// without waiting for them. A difference is detected by the rank that makes the call
// later: at once among the ranks of a host, otherwise within a second or in the next
// collective method. That rank fails the group, so that waits in kernels end. If all
// other ranks of the host agree, the error names the rank that differs as the culprit.
//
// All of the description is compared; the error shows its first 120 bytes. MatchCall
// does not allocate and takes about 100 ns.
//
// Errors: ErrInvalid, naming the call's number, the ranks and both descriptions, when
// they differ; ErrInvalid for a closed communicator; the group's error if it has
// failed.
func (c *Communicator) MatchCall(description string) error {
	if c.failure.failed.Load() {
		return c.failure.err()
	}
	calls := c.calls.Load()
	err, open := calls.Make(matchOp, description)
	if !open {
		return c.usable(matchOp)
	}
	if err != nil {
		c.failure.failBy(calls.Odd(), err)
	}
	return err
}

// lastCall returns this rank's last call.
func (c *Communicator) lastCall() watch.Call { return c.calls.Load().Last() }
