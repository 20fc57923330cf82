package main

import "time"

// heartbeat is how long a rank may be silent; communicator's default.
const heartbeat = 5 * time.Second

// A fault is what happens to one rank of a run, the victim. The others' errors name it.
type fault struct {
	name  string
	bound time.Duration // until every survivor has its error
	waits bool          // in addition, a wait's deadline must pass
	// outside is set if the parent inflicts the fault, at any moment of the run, and not
	// the victim, at a step.
	outside bool
	// harmless is set if no rank may notice.
	harmless bool
}

var faults = []fault{
	{name: "none", harmless: true},
	{name: "strangers", harmless: true},
	{name: "killed", bound: time.Second, outside: true},
	{name: "stopped", bound: heartbeat + time.Second, outside: true},
	{name: "no signal", bound: 200 * time.Millisecond, waits: true},
	{name: "other call", bound: 200 * time.Millisecond, waits: true},
	{name: "handler blocks", bound: 200 * time.Millisecond, waits: true},
	{name: "handler panics", bound: 300 * time.Millisecond},
	{name: "handler fails", bound: 300 * time.Millisecond},
	{name: "bad trigger", bound: 300 * time.Millisecond},
	{name: "abort", bound: 300 * time.Millisecond},
	{name: "cancel", bound: 300 * time.Millisecond},
	{name: "launcher killed", bound: time.Second, outside: true},
}
