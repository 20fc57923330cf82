package grace

import "time"

// GapShare is the part of a heartbeat time-out by which the one that looks for signs of life may be
// late. If it is later, it was stopped, or had no CPU, and so perhaps were others of its host.
const GapShare = 5

// AfterGap returns since when a rank of another host counts as silent, after a gap in which nobody
// looked. heard is when a sign of its life was last found. Its silence goes on, less the gap, and what
// it said meanwhile has GapShare of the time-out to be read.
func AfterGap(heard, now time.Time, gap, timeout time.Duration) time.Time {
	silent := min(now.Sub(heard)-gap, timeout-timeout/GapShare)
	return now.Add(-max(silent, 0))
}
