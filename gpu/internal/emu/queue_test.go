package emu_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/nativetest"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestNativeLeavesBusyStreamsToGo: a thread in C must not pass what Go queued.
func TestNativeLeavesBusyStreamsToGo(t *testing.T) {
	d := open(t)
	s := stream(t, d)
	words := alloc(t, d, 4096).Ptr()
	write(t, d, words, make([]uint64, 4))
	store := func(q *native.Queue, value uint64) int { return nativetest.Do(q, native.Store, words+8, value, 0) }

	// The queue is asked for while there is work.
	must(t, s.WaitValue64(words, 1, false), s.WriteValue64(words+8, 5))
	q := s.Native()
	if rc := store(q, 6); rc != nativetest.Busy {
		t.Errorf("a store on a stream at work returned %d", rc)
	}
	write(t, d, words, []uint64{1})
	must(t, s.Synchronize(deadline(t)))
	if got := read[uint64](t, d, words, 2)[1]; got != 5 {
		t.Errorf("the word is %d", got)
	}
	if rc := store(q, 6); rc != 0 {
		t.Errorf("a store on an idle stream returned %d", rc)
	}
	if rc := nativetest.Do(q, native.Mark, 0, 0, 0); rc != 0 {
		t.Errorf("a mark behind what is done returned %d", rc)
	}

	// More work, behind what the thread did.
	must(t, s.WaitValue64(words, 2, false), s.Copy(words+16, words+8, 8))
	if rc := store(q, 7); rc != nativetest.Busy {
		t.Errorf("a store on a stream at work again returned %d", rc)
	}
	write(t, d, words, []uint64{2})
	must(t, s.Synchronize(deadline(t)))
	if got := read[uint64](t, d, words, 3); got[1] != 6 || got[2] != 6 {
		t.Errorf("the words are %d", got)
	}

	must(t, s.BeginCapture())
	if rc := store(q, 8); rc != nativetest.Busy {
		t.Errorf("a store on a capturing stream returned %d", rc)
	}
	testerr.Must(s.EndCapture())(t)
	if rc := store(q, 8); rc != 0 {
		t.Errorf("a store after the capture returned %d", rc)
	}
}

// TestNativeOnFailedStream: a failed stream is busy, as the error is for Go.
func TestNativeOnFailedStream(t *testing.T) {
	d := open(t)
	s := stream(t, d)
	words := alloc(t, d, 4096).Ptr()
	before := s.Native()
	must(t, s.Launch(kernelOf(t, load(t, d, `extern "C" __global__ void trap() { __trap(); }`), "trap"), shape(1, 1), nil))
	if s.Synchronize(deadline(t)) == nil {
		t.Fatal("the trap was no failure")
	}
	if rc := nativetest.Do(before, native.Store, words, 1, 0); rc != nativetest.Busy {
		t.Errorf("a store on a failed stream returned %d", rc)
	}
}

// TestNativeOnClosedDevice: a closed device's stream is busy, as its memory is unmapped.
func TestNativeOnClosedDevice(t *testing.T) {
	d := open(t)
	s := stream(t, d)
	words := alloc(t, d, 4096).Ptr()
	q := s.Native()
	must(t, d.Close())
	if rc := nativetest.Do(q, native.Store, words, 1, 0); rc != nativetest.Busy {
		t.Errorf("a store on a closed device returned %d", rc)
	}
}

// TestNativeBesideGo has Go and a thread in C use a stream as fast as they can.
func TestNativeBesideGo(t *testing.T) {
	d := open(t)
	s := stream(t, d)
	words := alloc(t, d, 4096).Ptr()
	write(t, d, words, make([]uint64, 8))
	q := s.Native()
	stop, done := make(chan struct{}), make(chan struct{})
	var stored atomic.Int64
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if nativetest.Do(q, native.Write, words+8, words, 8) == 0 {
				stored.Add(1)
			}
		}
	}()
	const least = 2000
	rounds := uint64(0)
	for end := time.Now().Add(20 * time.Second); rounds < least || stored.Load() == 0 && time.Now().Before(end); rounds++ {
		must(t, s.WriteValue64(words, rounds+1))
		if rounds%100 == 0 {
			must(t, s.Synchronize(deadline(t)))
			time.Sleep(100 * time.Microsecond)
		}
	}
	must(t, s.Synchronize(deadline(t)))
	close(stop)
	<-done
	if stored.Load() == 0 {
		t.Error("the thread in C never had the stream")
	}
	if rc := nativetest.Do(q, native.Write, words+8, words, 8); rc != 0 {
		t.Fatalf("a copy on an idle stream returned %d", rc)
	}
	if got := read[uint64](t, d, words, 2); got[0] != rounds || got[1] != rounds {
		t.Errorf("the words are %d", got)
	}
}
