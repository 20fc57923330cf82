package bootstrap

import (
	"context"
	"net"
	"runtime"
	"testing"

	"github.com/mscclgo/mscclgo/internal/handshake"
)

// The context of a rank ends as the rendezvous answers. The rank connects, or its goodbye comes.
func TestConnectEndedAsTheRendezvousAnswers(t *testing.T) {
	noLeaks(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	id := newID([]string{"127.0.0.1"}, uint16(ln.Addr().(*net.TCPAddr).Port), false)
	member := id.member(handshake.Clear)
	for i := range 400 {
		ctx, cancel := context.WithCancel(testContext(t))
		said := make(chan frame, 1)
		go func() {
			defer close(said)
			raw, err := ln.Accept()
			if err != nil {
				return
			}
			defer raw.Close()
			nc, err := member.Server(raw, func(net.Conn, []byte) error { return nil })
			if err != nil {
				t.Error(err)
				return
			}
			f, err := readFrame(nc)
			if err == nil && f.kind == frameJoin {
				answer := frame{kind: frameTable, payload: encodeTable([]string{"127.0.0.1:1"})}.encode()
				go nc.Write(answer)
				for range i % 40 {
					runtime.Gosched()
				}
				cancel()
				f, err = readFrame(nc)
			}
			if err == nil {
				said <- f
			}
		}()
		j := joiner{o: Options{Size: 1, ID: id, Logger: quiet}, member: member, addrs: id.addrs()}
		_, nc, err := j.attempt(ctx)
		if err == nil {
			nc.close()
		} else if f := <-said; f.kind != frameGoodbye {
			t.Fatalf("%v, and then it said %v", err, f)
		}
		j.ln.Close()
	}
}
