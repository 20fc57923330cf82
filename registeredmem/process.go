package registeredmem

import (
	"github.com/mscclgo/mscclgo/internal/fdpass"
	"github.com/mscclgo/mscclgo/internal/inside"
)

func (r registryInside) JoinProcess(p *inside.Process[*Registry]) {
	r.process = p
	p.Add(r.instance, r.Registry)
}

// callInProcess asks the registry of the request for a memory, as fdpass.Call does. ok is false if it
// is not of this registry's process, or not of its group.
func (r *Registry) callInProcess(q request) (a fdpass.Answer, ok bool) {
	peer, ok := r.process.Find(q.instance)
	if !ok || peer.options.Group != r.options.Group || peer.options.Secret != r.options.Secret {
		return fdpass.Answer{}, false
	}
	return peer.serve(q.encode(), true), true
}
