package main

import (
	"fmt"
	"slices"

	"github.com/mscclgo/mscclgo/internal/hostid"
)

// The faults of this file are of a rank of a group on many hosts, which are emulated: each rank is told that it has
// one for itself.
const (
	manyCalm   = "many hosts"
	manyKilled = "many killed"
)

const (
	manyHosts = 16
	manySteps = 6
	manyMost  = 16 << 10
)

// spread makes the run one on many hosts, with small calls and no group beside it.
func (r *run) spread() {
	r.Most, r.beside = min(r.Most, manyMost), 0
	r.transports = slices.Repeat([]string{"ethernet"}, r.ranks)
}

// manyHost returns the variables by which a rank has a host for itself, if the run has many.
func (r *run) manyHost(rank int) []string {
	if !r.fault.many {
		return nil
	}
	return []string{fmt.Sprintf("%s=host %d", hostid.Env, rank)}
}

// largest returns the most ranks of a group.
func (c *config) largest() int {
	if slices.ContainsFunc(c.faults, func(f fault) bool { return f.many }) {
		return max(c.ranks, manyHosts)
	}
	return c.ranks
}
