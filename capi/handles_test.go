package main

import (
	"testing"

	"github.com/mscclgo/mscclgo"
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
	if err := handles.close("destroy a group", parent); err != nil {
		t.Error(err)
	}
}
