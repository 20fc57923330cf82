package communicator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/timeline"
)

const (
	// traceChunk is the largest message with a part of a record.
	traceChunk = 4 << 20
	// maxRecord bounds a rank's record: both rings at their largest, and what describes them.
	maxRecord = 2*maxTraceEvents*native.EventBytes + 64<<20
	// dumpGrace is how long the waits of kernels have to end, and to tell, after a failure.
	dumpGrace = 100 * time.Millisecond
)

const traceOp = "communicator: write the timeline"

// failed writes what this rank has, since the group has failed. t may be nil. It returns at
// once; settled waits.
func (t *tracer) failed() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dumped != nil || t.ended {
		return
	}
	t.dumped = make(chan struct{})
	go func() {
		defer close(t.dumped)
		time.Sleep(dumpGrace)
		t.dump()
	}()
}

// settled waits until the file of a failure is written, if there is one. A program that
// hears of the failure may end at once.
func (t *tracer) settled() {
	if t == nil {
		return
	}
	t.mu.Lock()
	dumped := t.dumped
	t.mu.Unlock()
	if dumped != nil {
		<-dumped
	}
}

// dump writes this rank's part alone to a file of its own.
func (t *tracer) dump() {
	r := t.record()
	if r == nil {
		return
	}
	options := &t.c.options
	if err := writeTrace(fmt.Sprintf("%s.rank%d", options.Trace, t.c.Rank()), []*timeline.Rank{r}); err != nil {
		options.Logger.Error("the timeline of a failure was not written", "rank", t.c.Rank(), "error", err)
	}
}

// finish writes the timeline when this rank leaves the group. together is whether all ranks do so now.
func (t *tracer) finish(together bool) error {
	t.settled()
	var err error
	if together {
		err = t.write()
	}
	if !together || err != nil {
		t.dump()
	}
	t.end()
	return err
}

// end has the ring be read no more. t may be nil.
func (t *tracer) end() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
}

// write collects what all ranks have, and rank 0 writes it. All ranks call it.
func (t *tracer) write() error {
	c := t.c
	ctx, cancel := context.WithTimeout(context.Background(), c.options.Timeout)
	defer cancel()
	err := t.collect(ctx)
	// Nobody goes before rank 0 has all.
	agreed := c.begin(closing, traceOp).agree(ctx, err)
	if err == nil && agreed != nil && c.Rank() != 0 {
		c.options.Logger.Error("rank 0 has not written the timeline", "rank", c.Rank(), "error", agreed)
	}
	if err != nil {
		return mscclgo.Errorf(mscclgo.KindOf(err), traceOp, "%w", err).At(c.Rank(), mscclgo.NoRank)
	}
	return nil
}

// collect brings the records of all ranks to rank 0, which writes them.
func (t *tracer) collect(ctx context.Context) error {
	now, deviceErr := t.c.dev.Internal().Clock()
	hosts, err := t.compareClocks(ctx)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.hosts.Last = hosts
	if deviceErr == nil {
		t.devices.Last = timeline.Sample{Local: now.Device, Common: now.Host, Error: now.Error}
	}
	t.mu.Unlock()
	mine := t.record()
	if t.c.Rank() != 0 {
		b, err := mine.Encode()
		if err != nil {
			return err
		}
		return t.send(ctx, b)
	}
	all := []*timeline.Rank{mine}
	for rank := 1; rank < t.c.Size(); rank++ {
		r, err := t.receive(ctx, rank)
		if err != nil {
			return err
		}
		all = append(all, r)
	}
	return writeTrace(t.c.options.Trace, all)
}

// send sends a record to rank 0: its length, then the parts.
func (t *tracer) send(ctx context.Context, b []byte) error {
	boot := t.c.boot
	if err := boot.Send(ctx, 0, traceTag, binary.LittleEndian.AppendUint64(nil, uint64(len(b)))); err != nil {
		return err
	}
	for len(b) > 0 {
		n := min(len(b), traceChunk)
		if err := boot.Send(ctx, 0, traceTag, b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// receive returns the record of a rank.
func (t *tracer) receive(ctx context.Context, rank int) (*timeline.Rank, error) {
	malformed := func(format string, args ...any) error {
		return mscclgo.Errorf(mscclgo.ErrRemote, traceOp, "its record is malformed: "+format, args...).At(t.c.Rank(), rank)
	}
	head, err := t.c.boot.Recv(ctx, rank, traceTag)
	if err != nil {
		return nil, err
	}
	if len(head) != 8 || binary.LittleEndian.Uint64(head) > maxRecord {
		return nil, malformed("its length is wrong")
	}
	size := int(binary.LittleEndian.Uint64(head))
	var b []byte
	for len(b) < size {
		part, err := t.c.boot.Recv(ctx, rank, traceTag)
		if err != nil {
			return nil, err
		}
		if len(part) == 0 || len(part) > size-len(b) {
			return nil, malformed("a part has %d bytes", len(part))
		}
		b = append(b, part...)
	}
	r, err := timeline.Decode(b)
	if err != nil {
		return nil, malformed("%w", err)
	}
	if r.Rank != rank || r.Size != t.c.Size() {
		return nil, malformed("it is of rank %d of %d", r.Rank, r.Size)
	}
	return r, nil
}

// writeTrace writes a file.
func writeTrace(path string, ranks []*timeline.Rank) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(timeline.Write(file, ranks), file.Close())
}
