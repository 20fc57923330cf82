package bootstrap

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/internal/watch"
)

// lateReader is a connection from which nothing is read until it may be, as by a process that gets
// no CPU.
type lateReader struct {
	*net.TCPConn
	may chan struct{}
}

func (l lateReader) Read(b []byte) (int, error) {
	<-l.may
	return l.TCPConn.Read(b)
}

// TestNewsBehindABrokenWrite has a peer send news and hang up, and this rank find out by a write that
// fails, before it has read the news: it still reads them.
func TestNewsBehindABrokenWrite(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	mine, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := newConn(lateReader{mine.(*net.TCPConn), make(chan struct{})}, new(sync.Mutex), &peer{rank: 1}, true)
	var got []frameKind
	ended := make(chan error, 1)
	go func() {
		ended <- c.serve(func(f frame) error {
			got = append(got, f.kind)
			return nil
		})
	}()
	if _, err := theirs.Write(failed(watch.Lost(1, 2, "why")).encode()); err != nil {
		t.Fatal(err)
	}
	theirs.(*net.TCPConn).SetLinger(0) // a reset, as where something of this rank's was not read
	theirs.Close()
	for broke := false; !broke; {
		o := c.enqueue(frame{kind: frameAsk})
		<-o.done
		broke = o.err != nil
	}
	close(c.nc.(lateReader).may)
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the connection did not end")
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the connection is still read")
	}
	if len(got) != 1 || got[0] != frameFailed {
		t.Errorf("frames of kinds %v were read, want the news alone", got)
	}
}
