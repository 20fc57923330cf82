package capi

// #include "process.h"
import "C"

import (
	"context"
	"fmt"
	"slices"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/gpu"
)

// mostMessages is more than a group of sends and receives may have.
const mostMessages = 1 << 24

func (c *call) messagesLoad(group handle) error {
	r, err := c.to("prepare sends and receives").group(group).collectives()
	c.check(err)
	return r.LoadGroups(context.Background())
}

func (c *call) messagesLaunch(group handle, all *C.mscclgo_message, count uint64) error {
	g := c.to("launch sends and receives").group(group)
	if count == 0 {
		return g.launch(c.op, nil)
	}
	if count >= mostMessages {
		return invalid(c.op, "there are %d messages, and a call takes fewer than %d", count, mostMessages)
	}
	messages, err := array(c.op, all, int(count))
	c.check(err)
	return g.launch(c.op, messages)
}

// places returns the stream and the address of a message, read as numbers, as they point nowhere.
func places(m *C.mscclgo_message) (stream handle, buffer address) {
	return *(*handle)(unsafe.Pointer(&m.stream)), *(*address)(unsafe.Pointer(&m.buffer))
}

// launch launches messages as a group. Their streams are not destroyed meanwhile.
func (g *group) launch(op string, all []C.mscclgo_message) error {
	r, err := g.collectives()
	if err != nil {
		return err
	}
	var streams []*object // each once: there are few
	defer func() {
		for _, s := range streams {
			s.done()
		}
	}()
	sends := g.spare.Swap(nil)
	if sends == nil {
		sends = r.Group()
	}
	for i := range all {
		m := &all[i]
		stream, buffer := places(m)
		at := slices.IndexFunc(streams, func(s *object) bool { return s.id == uint64(stream) })
		if at < 0 {
			s, err := objects.use(op, aStream, stream)
			if err != nil {
				return inMessage(all, i, err)
			}
			at, streams = len(streams), append(streams, s)
		}
		if err := g.add(op, sends, streams[at].value.(*gpu.Stream), buffer, m); err != nil {
			return inMessage(all, i, err)
		}
	}
	err = sends.Launch()
	g.spare.Store(sends) // empty again
	return err
}

// add adds a message to a group.
func (g *group) add(op string, to *collective.Group, s *gpu.Stream, buffer address, m *C.mscclgo_message) error {
	t, vouched, err := elementsOf(op, m._type)
	if err != nil {
		return err
	}
	if m.direction != C.MSCCLGO_SEND && m.direction != C.MSCCLGO_RECV {
		return invalid(op, "%d is not a direction: MSCCLGO_SEND and MSCCLGO_RECV are", int(m.direction))
	}
	b, err := g.memory(op, "buffer", buffer, uint64(m.count), uint64(t.Size()), vouched)
	if err != nil {
		return err
	}
	if m.direction == C.MSCCLGO_SEND {
		to.Send(s, b, uint64(m.count), t, int(m.peer))
	} else {
		to.Recv(s, b, uint64(m.count), t, int(m.peer))
	}
	return nil
}

// inMessage names the message that an error is about, and its place where there are several.
func inMessage(all []C.mscclgo_message, i int, err error) error {
	what := fmt.Sprintf("message with rank %d", int(all[i].peer))
	switch all[i].direction {
	case C.MSCCLGO_SEND:
		what = fmt.Sprintf("send to rank %d", int(all[i].peer))
	case C.MSCCLGO_RECV:
		what = fmt.Sprintf("receive from rank %d", int(all[i].peer))
	}
	if len(all) > 1 {
		what = fmt.Sprintf("message %d of %d, %s", i+1, len(all), what)
	}
	return mscclgo.Errorf(mscclgo.KindOf(err), "mscclgo: "+what, "%w", err)
}
