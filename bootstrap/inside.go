package bootstrap

import "github.com/mscclgo/mscclgo/internal/inside"

// Internal is for packages of this module.
func (b *Bootstrap) Internal() inside.Bootstrap[*Rendezvous] { return insideBootstrap{b} }

// Internal is for packages of this module.
func (r *Rendezvous) Internal() inside.Rendezvous { return insideRendezvous{r} }

func (b insideBootstrap) AskDead(dead func(rank int) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dead = append(b.dead, dead)
}

type (
	insideBootstrap  struct{ *Bootstrap }
	insideRendezvous struct{ *Rendezvous }
)
