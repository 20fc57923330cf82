package ib

// #include "post.h"
import "C"

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// lock guards a connection's state in C. Goroutines take turns by the mutex. A thread in C has
// the word claimed for at most one trigger, and waits for no goroutine.
type lock struct {
	mu      sync.Mutex
	claimed *atomic.Uint32
}

func lockOf(c *C.ib_conn) lock {
	return lock{claimed: (*atomic.Uint32)(unsafe.Pointer(&c.claimed))}
}

func (l *lock) Lock() {
	l.mu.Lock()
	for !l.claimed.CompareAndSwap(C.IB_NOBODY, C.IB_GOROUTINE) {
		runtime.Gosched()
	}
}

func (l *lock) TryLock() bool {
	if !l.mu.TryLock() {
		return false
	}
	if l.claimed.CompareAndSwap(C.IB_NOBODY, C.IB_GOROUTINE) {
		return true
	}
	l.mu.Unlock()
	return false
}

func (l *lock) Unlock() {
	l.claimed.Store(C.IB_NOBODY)
	l.mu.Unlock()
}
