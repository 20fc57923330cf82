package explore

import "slices"

// Shrink returns few of the switches, in the order of the run, or none, with which a run still fails, by
// at most so many runs (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing
// Input", 2002). fails runs the [Fixed] plan with some of them, and returns the switches of that run
// if it fails.
func Shrink(switches []Switch, runs int, fails func([]Switch) ([]Switch, bool)) []Switch {
	try := func(some []Switch) bool {
		if runs == 0 {
			return false
		}
		runs--
		took, ok := fails(some)
		if ok && len(took) < len(switches) {
			switches = took
		}
		return ok && len(took) <= len(some)
	}
	if len(switches) > 0 && try(nil) {
		return nil // it fails in any order
	}
	// Old values alone may do, in the order of threads that is most usual.
	if old := slices.DeleteFunc(slices.Clone(switches), func(s Switch) bool { return s.Age == 0 }); len(old) > 0 && len(old) < len(switches) {
		all := switches
		if !try(old) {
			switches = all
		}
	}
	// First a beginning, as what comes behind a mistake does not matter.
	for low, high := 0, len(switches); low < high && runs > 0; {
		middle := (low + high) / 2
		all := switches
		if try(slices.Clone(all[:middle])) {
			high = min(middle, len(switches))
		} else {
			switches, low = all, middle+1
		}
	}
	for size := (len(switches) + 1) / 2; size > 0 && runs > 0; {
		removed := false
		for at := 0; at < len(switches) && runs > 0; {
			all := switches
			rest := slices.Concat(all[:at], all[min(at+size, len(all)):])
			if try(rest) {
				removed = true
			} else {
				switches = all
				at += size
			}
		}
		if size == 1 && !removed {
			break
		}
		size = max(1, size/2)
	}
	return switches
}
