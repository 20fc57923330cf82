package communicator

import (
	"cmp"
	"slices"

	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// readLaunches reads this rank's launches, and then the notes, which it returns. A wait that passes
// its deadline ends its kernel: so launches count only if none has done so since they were read.
// Otherwise the launches that were read before stay. The caller holds mu.
func (o *observer) readLaunches(read func() *deviceNotes) *deviceNotes {
	if o.dev == nil {
		return read()
	}
	launched := telling(o.dev.Internal().Launches(false), o.launches)
	notes := read()
	if !notes.failed || o.launched == nil {
		o.launched = launched
	}
	return notes
}

// queryStreams asks the driver which launches have ended. It may wait for a lock that a
// call holds which itself waits for a kernel, so nobody waits for it. The caller holds mu.
func (o *observer) queryStreams() {
	if o.dev == nil || o.querying.Swap(true) {
		return
	}
	go func() {
		o.dev.Internal().Launches(true)
		o.querying.Store(false)
	}()
}

// telling returns the launches that watch.Status.Launches has, of all streams.
func telling(streams [][]inside.Launch, group inside.LaunchGroup) []watch.Launch {
	var under, ended, earlier []watch.Launch
	for i, launches := range streams {
		var first, last *inside.Launch
		for _, l := range launches {
			if !l.Ended {
				if first == nil {
					first = &l
				}
				last = &l
				continue
			}
			launch := launchOf(i, l, group)
			if launch.Group == watch.OtherGroup || launch.Group == watch.UnknownGroup {
				continue
			}
			same := func(e watch.Launch) bool { return e.Kernel == launch.Kernel && e.Group == launch.Group }
			if at := slices.IndexFunc(ended, same); at < 0 {
				ended = append(ended, launch)
			} else if ended[at].Nth < launch.Nth {
				earlier, ended[at] = append(earlier, ended[at]), launch
			} else {
				earlier = append(earlier, launch)
			}
		}
		if first != nil {
			under = append(under, launchOf(i, *first, group))
		}
		if first != last {
			under = append(under, launchOf(i, *last, group))
		}
	}
	newestFirst := func(a, b watch.Launch) int { return cmp.Compare(b.Number, a.Number) }
	slices.SortStableFunc(ended, newestFirst)
	slices.SortStableFunc(earlier, newestFirst)
	all := slices.Concat(under, ended, earlier)
	return all[:min(len(all), watch.MaxLaunches)]
}

func clipKernel(name string) string { return name[:min(len(name), watch.MaxKernel)] }

func launchOf(stream int, l inside.Launch, group inside.LaunchGroup) watch.Launch {
	return watch.Launch{
		Stream: stream, Number: l.Number, Kernel: clipKernel(l.Name), Group: whose(l, group), Nth: l.Nth,
		Blocks: l.Grid[0] * max(l.Grid[1], 1) * max(l.Grid[2], 1), Threads: l.Block[0] * max(l.Block[1], 1) * max(l.Block[2], 1),
		Hash: l.Hash, Ended: l.Ended,
	}
}

// whose returns whether a launch is of the group.
func whose(l inside.Launch, group inside.LaunchGroup) watch.Group {
	switch {
	case l.Group == group.Number():
		return watch.ThisGroup
	case l.Group != 0:
		return watch.OtherGroup
	case group.Only():
		return watch.NoGroup
	}
	return watch.UnknownGroup
}
