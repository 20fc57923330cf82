package bootstrap

import "github.com/mscclgo/mscclgo/internal/blame"

// report tells this process's launcher why the group failed, if this rank is the one
// that noticed. The launcher could only guess: it sees which process ends first.
func (b *Bootstrap) report(f failure) {
	if f.seenBy == b.rank {
		blame.Send(blame.Report{Group: b.Group(), Rank: uint32(f.rank), Text: f.text})
	}
}
