package main

import "time"

// timeout bounds the waits of a run's ranks.
const timeout = 2 * time.Second

// heartbeat is how long a rank may be silent; communicator's default.
const heartbeat = 5 * time.Second

// A fault is what happens to one rank of a run, the victim. The others' errors name it.
type fault struct {
	name  string
	bound time.Duration // until every survivor has its error
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
	{name: "no signal", bound: timeout + 200*time.Millisecond},
	{name: "other call", bound: timeout + 200*time.Millisecond},
	{name: "handler blocks", bound: timeout + 200*time.Millisecond},
	{name: "handler panics", bound: 300 * time.Millisecond},
	{name: "handler fails", bound: 300 * time.Millisecond},
	{name: "bad trigger", bound: 300 * time.Millisecond},
	{name: "abort", bound: 300 * time.Millisecond},
	{name: "cancel", bound: 300 * time.Millisecond},
	{name: "launcher killed", bound: time.Second, outside: true},
}
