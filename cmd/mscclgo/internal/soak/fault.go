package main

import "time"

// A fault is what happens to one rank of a run, the victim. The others' errors name it.
type fault struct {
	name  string
	bound time.Duration // until every survivor has its error
	waits bool          // in addition, a wait's deadline must pass
	beats bool          // in addition, the heartbeat time-out must pass; no wait may end first
	// outside is set if the parent inflicts the fault, at any moment of the run, and not
	// the victim, at a step.
	outside bool
	// harmless is set if no rank may notice.
	harmless bool
	// tolerated is set if the work may go on. If it does not, the time begins with the
	// victim's own error, or its end.
	tolerated bool
	// either is set if the victim's peers cannot tell which end has failed: each error
	// names one end, and the victim is one of the two.
	either bool
	// miscounts is set if the victim signals more or less often than its peers wait.
	miscounts bool
	// disagree is set if the group cannot form, as ranks disagree: no rank is to blame.
	disagree bool
	// pairs is set if another rank has the fault too, or another one; see run.pair.
	pairs bool
	// many is set if the group has many hosts; see run.spread.
	many bool
	// network is set if the fault is one of the network between hosts.
	network bool
}

var faults = []fault{
	{name: "none", harmless: true},
	{name: "strangers", harmless: true},
	{name: "killed", bound: time.Second, outside: true},
	{name: childLives, bound: time.Second, beats: true, outside: true}, // before there are boards only silence tells
	{name: killedEarly, bound: time.Second, beats: true, outside: true},
	{name: "stopped", bound: time.Second, beats: true, outside: true},
	{name: "continued", beats: true, outside: true, harmless: true},
	{name: "continued late", bound: time.Second, beats: true, outside: true},
	{name: "socket cut", bound: 300 * time.Millisecond, outside: true, tolerated: true, either: true},
	{name: "sockets cut", bound: 300 * time.Millisecond, outside: true, tolerated: true, either: true},
	{name: "no descriptors", bound: time.Second, outside: true, tolerated: true},
	{name: "no memory", bound: time.Second, outside: true, tolerated: true},
	{name: "disk full", bound: time.Second, tolerated: true},
	{name: "no signal", bound: 200 * time.Millisecond, waits: true, miscounts: true},
	{name: "other grid", bound: 200 * time.Millisecond, waits: true, miscounts: true},
	{name: "no call", bound: 200 * time.Millisecond, waits: true},
	{name: "other call", bound: 200 * time.Millisecond, waits: true},
	{name: "handler blocks", bound: 200 * time.Millisecond, waits: true},
	{name: "handler panics", bound: 300 * time.Millisecond},
	{name: "handler fails", bound: 300 * time.Millisecond},
	{name: "bad trigger", bound: 300 * time.Millisecond},
	{name: "abort", bound: 300 * time.Millisecond},
	{name: "cancel", bound: 300 * time.Millisecond},
	{name: "host silent", bound: time.Second, beats: true, outside: true, network: true},
	{name: "link down", bound: time.Second, beats: true, outside: true, network: true},
	{name: pairSilent, bound: time.Second, beats: true, outside: true, network: true, pairs: true},
	{name: mtusDiffer, bound: 20 * time.Second, beats: true, outside: true, tolerated: true, either: true, network: true},
	{name: twoFaults, bound: time.Second, beats: true, outside: true, pairs: true},
	{name: "packets dropped", harmless: true, network: true},
	{name: "few descriptors", harmless: true},
	{name: fewAtRankZero, bound: forms},
	{name: sizesDiffer, bound: forms, disagree: true},
	{name: "bound", harmless: true},
	{name: manyCalm, harmless: true, many: true},
	{name: manyKilled, bound: time.Second, outside: true, many: true},
	{name: "launcher killed", bound: time.Second, outside: true},
}
