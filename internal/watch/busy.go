package watch

import (
	"fmt"
	"strings"
)

// busy says what a rank's host does that may last, and what for, or "". What is not to compile is done in the
// driver, which waits for the kernels of all ranks of the process on that device.
func (g *graph) busy(rank int) string {
	s := g.ranks[rank].Status
	if s == nil || s.Busy == "" {
		return ""
	}
	text := s.busy()
	if s.Compiles {
		return text
	}
	var kernels []string
	for i, r := range g.ranks {
		if r.Status == nil || r.Process != s.Process || r.Namespace != s.Namespace || r.Host != s.Host || r.Device != s.Device {
			continue
		}
		for _, l := range launchesUnderWay(r.Status) {
			kernels = append(kernels, fmt.Sprintf("%v of rank %s", l, g.name(i)))
		}
	}
	if len(kernels) == 0 {
		return text
	}
	if more := len(kernels) - mostNames; more > 0 {
		kernels = append(kernels[:mostNames], fmt.Sprintf("%d more", more))
	}
	return text + ", and the driver may wait until the kernels of that process on " + s.Device + " have ended; not known to have ended: " + strings.Join(kernels, ", ")
}

// busy says what the host does.
func (s *Status) busy() string {
	return fmt.Sprintf("its host %s, for %v so far", s.Busy, round(s.BusyFor))
}
