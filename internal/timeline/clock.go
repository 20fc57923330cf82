package timeline

// Sample is what two clocks showed at one time, in nanoseconds, and by how much that may be
// wrong.
type Sample struct{ Local, Common, Error uint64 }

// Clock turns the times of one clock into times of another. Between two samples it takes
// their rates for constant.
type Clock struct {
	First Sample
	Last  Sample // or the zero value
}

// at returns the other clock's time.
func (c *Clock) at(local uint64) int64 {
	since := int64(local - c.First.Local)
	at := int64(c.First.Common) + since
	if ran := int64(c.Last.Local - c.First.Local); c.Last != (Sample{}) && ran > 0 {
		// How much more the other has run.
		more := int64(c.Last.Common-c.First.Common) - ran
		at += int64(float64(more) * float64(since) / float64(ran))
	}
	return at
}

// wrong returns by how much at may be wrong.
func (c *Clock) wrong() uint64 { return max(c.First.Error, c.Last.Error) }

// ClockError returns by how many nanoseconds the times of the rank's kernels may be wrong
// against the times of rank 0's host.
func (r *Rank) ClockError() uint64 { return r.Devices.wrong() + r.Hosts.wrong() }

func (r *Rank) deviceTime(t uint64) int64 { return r.Hosts.at(uint64(r.Devices.at(t))) }
func (r *Rank) hostTime(t uint64) int64   { return r.Hosts.at(t) }
