package capi

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestClosing has what an object was made of destroyed while it closes.
func TestClosing(t *testing.T) {
	handles := table{all: map[uint64]*object{}}
	parent := handles.add(nil, aGroup, nil, nil)
	begun, goOn, ended := make(chan bool), make(chan bool), make(chan error, 1)
	part := handles.add(parent, aBuffer, nil, func() error {
		close(begun)
		<-goOn
		return nil
	})
	part.users.Add(1)
	go func() { ended <- handles.close("destroy a buffer", part) }()
	<-begun
	parent.users.Add(1)
	testerr.Expect(t, handles.close("destroy a group", parent), mscclgo.ErrInvalid, "another thread")
	close(goOn)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	parent.users.Add(1)
	testerr.Report(t, handles.close("destroy a group", parent))
}

// TestFound has calls find an object while another fails to destroy it.
func TestFound(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8)) // so that threads are interrupted within a call
	handles := table{all: map[uint64]*object{}}
	var all []*object
	for range 1000 {
		all = append(all, handles.add(nil, aBuffer, nil, nil))
	}
	all[len(all)-1].users.Add(1) // so that those before are gone for a while
	var found part
	all[0].store(&found.memory)
	var stop atomic.Bool
	var finders sync.WaitGroup
	for range 4 {
		finders.Go(func() {
			for !stop.Load() {
				o, _, err := handles.find("find", aBuffer, found.memory)
				if err != nil {
					t.Error(err)
					return
				}
				o.done()
			}
		})
	}
	for start := time.Now(); time.Since(start) < 300*time.Millisecond; {
		handles.mu.Lock()
		err := seize("destroy a group", all, nil)
		handles.mu.Unlock()
		testerr.Expect(t, err, mscclgo.ErrInvalid, "another thread")
	}
	stop.Store(true)
	finders.Wait()
}

// TestRetired has a call wait for the work of a stream that was destroyed, as the call does that re-forms the group.
func TestRetired(t *testing.T) {
	handles := table{all: map[uint64]*object{}}
	device := handles.add(nil, aDevice, nil, nil)
	stream := handles.addStream(device, nil, true)
	closed := 0
	stream.close = func() error { closed++; return nil }
	stream.users.Add(1)
	testerr.Check(t, handles.retire("destroy a stream", stream))
	stream.users.Add(1)
	for _, want := range []int{0, 1, 1} {
		testerr.Report(t, handles.sweep(device))
		testcmp.Equal(t, "streams closed", closed, want)
		if want == 0 {
			stream.done()
		}
	}
}

// TestSentence has errors of several calls told in one line, each once.
func TestSentence(t *testing.T) {
	first, second := mscclgo.Errorf(mscclgo.ErrTimeout, "one", "late"), errors.New("two")
	for _, test := range []struct {
		err  error
		want string
	}{
		{second, "two"},
		{first, "one: timeout: late"},
		{errors.Join(errors.Join(first), nil, errors.Join(second, first)), "one: timeout: late; and two"},
		{fmt.Errorf("the compiler says\n%w%w", first, second), "the compiler says\none: timeout: latetwo"},
	} {
		testcmp.Equal(t, "sentence", sentence(test.err), test.want)
	}
}
