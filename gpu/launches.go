package gpu

import (
	"fmt"
	"hash/crc32"
	"strings"
	"sync"
	"weak"

	"github.com/mscclgo/mscclgo/internal/inside"
)

// A launchLog has the last launches of a stream: for a verdict on a group that does not
// progress. Launching does no more for it than a few stores, a count, and a look at the
// arguments.
type launchLog struct {
	mu       sync.Mutex
	launched uint64 // launches so far
	ended    uint64 // of those, the first ones that are known to have ended
	last     [loggedLaunches]inside.Launch
}

// loggedLaunches is how many launches a stream remembers, and graphNames of how many
// kernels a graph has the names.
const (
	loggedLaunches = 8
	graphNames     = 3
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// launched adds a launch that was made to the stream's. of is what launchGroups.find returns of it:
// the memory there may have been left to another group since it was captured.
func (s *Stream) launched(launch inside.Launch, of uint64) {
	groups := &s.dev.groups
	launch.Group = groups.of(of)
	launch.Nth = groups.count(launch.Name, launch.Group)
	s.log.add(launch)
}

// add adds a launch that was made, of which all but the number is known.
func (l *launchLog) add(launch inside.Launch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	launch.Number = l.launched + 1
	l.last[l.launched%loggedLaunches] = launch
	l.launched++
}

// made returns how many launches were made.
func (l *launchLog) made() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.launched
}

// end notes that the first launches have ended.
func (l *launchLog) end(launches uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = max(l.ended, launches)
}

// read returns the launches that are remembered, the oldest first.
func (l *launchLog) read() []inside.Launch {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []inside.Launch
	for i := l.launched - min(l.launched, loggedLaunches); i < l.launched; i++ {
		launch := l.last[i%loggedLaunches]
		launch.Ended = i < l.ended
		all = append(all, launch)
	}
	return all
}

// askEnded asks whether all launches of the stream have ended, unless that would invalidate
// a capture. It does not ask about a stream of other code, which may have closed it.
func (s *Stream) askEnded() {
	s.mu.Lock() // Close waits
	defer s.mu.Unlock()
	if s.foreign || s.capturing() != nil || s.usable("") != nil {
		return
	}
	made := s.log.made()
	if done, _ := s.b.Query(); done {
		s.log.end(made)
	}
}

// openStreams returns the streams that are open and in use, the oldest first.
func (d *Device) openStreams() []*Stream {
	d.mu.Lock()
	defer d.mu.Unlock()
	var open []*Stream
	kept := d.streams[:0]
	for _, w := range d.streams {
		if s := w.Value(); s != nil && !s.closed.Load() {
			open, kept = append(open, s), append(kept, w)
		}
	}
	clear(d.streams[len(kept):])
	d.streams = kept
	return open
}

// remember adds a stream to the streams that launches looks at.
func (d *Device) remember(s *Stream) {
	d.openStreams() // so that there are never many that are closed
	d.mu.Lock()
	defer d.mu.Unlock()
	d.streams = append(d.streams, weak.Make(s))
}

// adds adds the launch of a kernel to the capture's launches. of is what launchGroups.find returns
// of it.
func (c *capture) adds(kernel inside.Launch, of uint64, groups *launchGroups) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of = groups.join(c.of, of)
	if len(c.kernels) < graphNames {
		c.kernels = append(c.kernels, kernel.Name)
	}
	if c.launches == 0 {
		c.grid, c.block = kernel.Grid, kernel.Block
	} else if c.grid != kernel.Grid || c.block != kernel.Block {
		c.mixed = true
	}
	c.launches++
}

// mixes notes that the capture has kernels of unknown grids.
func (c *capture) mixes() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mixed = true
}

// launch returns what is told of a launch of the capture's graph, and what launchGroups.find
// returns of it.
func (c *capture) launch() (launch inside.Launch, of uint64) {
	if c == nil {
		return inside.Launch{Name: "a graph"}, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.launches == 0 {
		return inside.Launch{Name: "a graph without kernels"}, 0
	}
	launch.Name = "a graph of " + strings.Join(c.kernels, ", ")
	if more := c.launches - len(c.kernels); more > 0 {
		launch.Name += fmt.Sprintf(" and %d more", more)
	}
	if !c.mixed {
		launch.Grid, launch.Block = c.grid, c.block
	}
	return launch, c.of
}
