package model

import (
	"slices"
	"strings"

	"github.com/mscclgo/mscclgo/collective"
)

// algorithm is what the model knows of one of the library's algorithms.
type algorithm struct {
	name    string
	packets bool // data carry flags
	lines   bool // in packets of 128 bytes
	twoShot bool // a rank reduces a share, and hands it to all
	through path
}

// path is what moves an algorithm's data.
type path int

const (
	byKernel   path = iota // threads that reach the peers' memory
	byExchange             // port channels, each part straight to its place
	byRing                 // port channels, around the ring
	byPush                 // threads, through an inbox
	byStages               // port channels, and threads that reduce
	byHosts                // threads within a host, port channels between hosts
	byRails                // the same, of what is not reduced, and all ranks or hosts get
	byRoutes               // the same, of what is for one rank
	bySlots                // threads, through slots
)

// acrossHosts reports whether the ranks may be on several hosts.
func (p path) acrossHosts() bool {
	return p == byExchange || p == byRing || p == byHosts || p == byRails || p == byRoutes
}

// find returns the algorithm of a name; false if the collective has no such.
func find(k collective.Kind, name string) (algorithm, bool) {
	a := algorithm{name: name, lines: strings.HasSuffix(name, "LL128"), twoShot: strings.HasPrefix(name, "twoShot")}
	a.packets = a.lines || strings.HasSuffix(name, "LL8") || strings.HasSuffix(name, "LL16")
	switch name {
	case "ports":
		a.through = byExchange
	case "ring":
		a.through = byRing
	case "pushed":
		a.through = byPush
	case "staged":
		a.through = byStages
	case "slots":
		a.through = bySlots
	case "hier", "hierRing", "hierTree":
		switch k {
		case collective.AllGather, collective.Broadcast:
			a.through = byRails
		case collective.AllToAll, collective.Gather, collective.Scatter:
			a.through = byRoutes
		default:
			a.through = byHosts
		}
	}
	return a, slices.Contains(k.Algorithms(), name)
}
