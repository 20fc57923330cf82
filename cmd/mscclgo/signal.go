package main

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
)

// patience is how long an interrupted program may take to leave nothing behind.
const patience = 2 * time.Second

// interruptible returns a context that ends after a time, and by an interrupt or
// SIGTERM. end, called last, then ends the process by that signal, as its parent
// expects. A program that does not get to it in time ends all the same.
func interruptible(timeout time.Duration) (ctx context.Context, end func()) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	var came atomic.Pointer[os.Signal]
	ended := make(chan struct{})
	go func() {
		select {
		case s := <-signals:
			came.Store(&s)
			cancel()
		case <-ended:
			return
		}
		select {
		case <-time.After(patience):
			die(*came.Load())
		case <-ended:
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(ended)
		cancel()
		if s := came.Load(); s != nil {
			die(*s)
		}
	}
}

// die ends the process by a signal.
func die(s os.Signal) {
	signal.Reset(s)
	syscall.Kill(os.Getpid(), s.(syscall.Signal))
	time.Sleep(time.Second) // until it arrives
	os.Exit(1)
}
