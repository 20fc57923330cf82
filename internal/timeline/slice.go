package timeline

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mscclgo/mscclgo/internal/native"
)

// slice is an event as it is shown.
type slice struct {
	rank       *Rank
	event      *native.Event
	start, end int64 // nanoseconds of the common clock
	track      track
	lane       int
	name       string
	args       map[string]any
	unended    bool // a launch whose end is not known
}

// track is a row of a rank.
type track struct {
	kind   trackKind
	number int
}

type trackKind int

// The kinds of tracks, in the order in which they are shown.
const (
	streamTrack trackKind = iota
	blockTrack
	proxyTrack
	transportTrack
)

func (t track) name() string {
	switch t.kind {
	case streamTrack:
		return fmt.Sprintf("stream %d", t.number)
	case blockTrack:
		return fmt.Sprintf("kernels, block %d", t.number)
	case proxyTrack:
		return "proxy"
	}
	return fmt.Sprintf("transport to rank %d", t.number)
}

// results are the names of devicecode.WaitResult.
var results = [...]string{"done", "timed out", "aborted"}

func resultOf(note uint8) string {
	if int(note) < len(results) {
		return results[note]
	}
	return fmt.Sprint(note)
}

// transports are the names by the number of the bit.
var transports = [...]string{"CUDA IPC", "InfiniBand", "Ethernet", "shared memory"}

// slicesOf returns what a rank did, the launches first.
func slicesOf(r *Rank) []*slice {
	all := launches(r)
	for i := range r.Kernels {
		if s := kernelSlice(r, &r.Kernels[i]); s != nil {
			all = append(all, s)
		}
	}
	for i := range r.HostDoes {
		if s := hostSlice(r, &r.HostDoes[i]); s != nil {
			all = append(all, s)
		}
	}
	return all
}

// launches pairs the begins of launches with their ends. Launches of one site do not overlap.
func launches(r *Rank) []*slice {
	var all []*slice
	open := map[uint64]*slice{}
	var newest int64
	for i := range r.Kernels {
		e := &r.Kernels[i]
		newest = max(newest, r.deviceTime(e.End))
		switch e.Kind() {
		case native.EventLaunchBegin:
			if e.Value >= uint64(len(r.Sites)) {
				continue
			}
			site := &r.Sites[e.Value]
			s := &slice{rank: r, event: e, start: r.deviceTime(e.Start), name: site.Kernel, unended: true, track: track{streamTrack, site.Stream}}
			s.args = map[string]any{"grid": site.Grid, "block": site.Block, "stream": site.Stream}
			if site.Captured {
				s.args["captured"] = true
			}
			open[e.Value] = s
			all = append(all, s)
		case native.EventLaunchEnd:
			if s := open[e.Value]; s != nil {
				s.end, s.unended = r.deviceTime(e.Start), false
				delete(open, e.Value)
			}
		}
	}
	for _, s := range all {
		if s.unended {
			s.end = max(newest, s.start)
			s.args["ended"] = false
		}
	}
	return all
}

// kernelSlice returns the slice of an event of a kernel, or nil.
func kernelSlice(r *Rank, e *native.Event) *slice {
	s := &slice{rank: r, event: e, start: r.deviceTime(e.Start), end: r.deviceTime(e.End), track: track{blockTrack, e.Block()}}
	s.args = map[string]any{"block": e.Block()}
	peer := r.peer(e)
	switch kind := e.Kind(); kind {
	case native.EventSignal, native.EventPortSignal:
		s.name = fmt.Sprintf("signal to %d", peer)
		s.args["number"] = e.Value
	case native.EventWait, native.EventPortWait:
		s.name = fmt.Sprintf("wait for %d", peer)
		s.args["number"], s.args["result"] = e.Value, resultOf(e.Note())
	case native.EventPut:
		s.name = fmt.Sprintf("put to %d", peer)
		s.args["bytes"], s.args["offset"] = e.Bytes, e.Extra
	case native.EventGet:
		s.name = fmt.Sprintf("get from %d", peer)
		s.args["bytes"], s.args["offset"] = e.Bytes, e.Extra
	case native.EventPutPackets:
		s.name = fmt.Sprintf("packets to %d", peer)
		s.args["bytes"], s.args["offset"], s.args["flag"] = e.Bytes, e.Extra, e.Value
	case native.EventWaitPackets:
		s.name = fmt.Sprintf("wait for packets of %d", peer)
		s.args["bytes"], s.args["offset"], s.args["flag"], s.args["result"] = e.Bytes, e.Extra, e.Value, resultOf(e.Note())
	case native.EventPush:
		s.name = "push " + triggerName(e.Note())
		s.args["position"], s.args["port"] = e.Value, e.Channel()
		if e.Note()&1 != 0 && e.Note() < 128 {
			s.args["bytes"] = e.Bytes
		}
		return s
	case native.EventAwaitFlush, native.EventAwaitTrigger:
		s.name = map[bool]string{true: "flush", false: "await the host"}[kind == native.EventAwaitFlush]
		s.args["position"], s.args["result"] = e.Value, resultOf(e.Note())
	case native.EventBarrier:
		s.name = "barrier"
		s.args["number"], s.args["result"] = e.Value, resultOf(e.Note())
	case native.EventRoundSignal:
		s.name = "signal to all"
		s.args["number"], s.args["rounds"], s.args["of block"] = e.Value, e.Bytes, e.Extra
	case native.EventRoundWait:
		s.name = "wait for all"
		if peer >= 0 {
			s.name = fmt.Sprintf("wait for %d", peer)
		}
		s.args["number"], s.args["of block"], s.args["result"] = e.Value, e.Extra, resultOf(e.Note())
	case native.EventPackets:
		s.name = "exchange of packets"
		s.args["call"] = e.Value
	default:
		return nil
	}
	if c, ok := r.Channels[e.Channel()]; ok {
		s.args["channel"] = channelName(c)
	}
	return s
}

// hostSlice returns the slice of an event of the host, or nil.
func hostSlice(r *Rank, e *native.Event) *slice {
	s := &slice{rank: r, event: e, start: r.hostTime(e.Start), end: r.hostTime(e.End), track: track{proxyTrack, 0}}
	s.args = map[string]any{}
	switch e.Kind() {
	case native.EventServe:
		s.name = "serve " + triggerName(e.Note())
		s.args["position"] = e.Value
		if e.Bytes > 0 {
			s.args["bytes"] = e.Bytes
		}
	case native.EventHostSignal:
		s.name = fmt.Sprintf("signal to %d", e.Peer())
		s.args["number of the host's"] = e.Value
	case native.EventWrite, native.EventRead, native.EventAtomic, native.EventFlush:
		s.track = track{transportTrack, int(e.Peer())}
		s.name = map[native.EventKind]string{native.EventWrite: "write", native.EventRead: "read", native.EventAtomic: "atomic", native.EventFlush: "flush"}[e.Kind()]
		if int(e.Note()) < len(transports) {
			s.args["transport"] = transports[e.Note()]
		}
		if e.Bytes > 0 {
			s.args["bytes"] = e.Bytes
		}
		return s
	default:
		return nil
	}
	if c, ok := r.Channels[e.Channel()]; ok {
		s.args["channel"] = channelName(c)
	}
	return s
}

func channelName(c Channel) string {
	if c.Name != "" {
		return fmt.Sprintf("%s[%d]", c.Name, c.Index)
	}
	return fmt.Sprintf("call %d[%d]", c.Call, c.Index)
}

// triggerName returns what a trigger of a kind asks for.
func triggerName(kind uint8) string {
	if kind >= 128 {
		return fmt.Sprintf("trigger %d", kind)
	}
	parts := []string{"put", "signal", "flush", "", "get", "store"}
	if kind>>6 != 0 {
		parts = []string{"put", "signal", "flush", "", "exchange", "add"}
	}
	var names []string
	for i, part := range parts {
		if part != "" && kind>>i&1 != 0 {
			names = append(names, part)
		}
	}
	return strings.Join(names, "+")
}

// arrange gives the slices of a track lanes in which they do not overlap, but lie in each
// other or beside each other, as a row can show. It sorts them.
func arrange(all []*slice) {
	slices.SortStableFunc(all, func(a, b *slice) int {
		if a.start != b.start {
			return cmpInt(a.start, b.start)
		}
		return cmpInt(b.end, a.end)
	})
	type row struct {
		track track
		lane  int
	}
	open := map[row][]int64{} // the ends of the slices around
	for _, s := range all {
		for lane := 0; ; lane++ {
			at := row{s.track, lane}
			ends := open[at]
			for len(ends) > 0 && ends[len(ends)-1] <= s.start {
				ends = ends[:len(ends)-1]
			}
			if len(ends) == 0 || ends[len(ends)-1] >= s.end {
				s.lane, open[at] = lane, append(ends, s.end)
				break
			}
			open[at] = ends
		}
	}
}

func cmpInt(a, b int64) int {
	if a < b {
		return -1
	}
	if a > b {
		return 1
	}
	return 0
}
