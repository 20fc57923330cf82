package ib

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// patience bounds what tests wait for, in an emulated machine too.
const patience = 60 * time.Second

// testDevices returns the two RDMA devices to test with.
func testDevices(t testing.TB) [2]string {
	t.Helper()
	names := os.Getenv("MSCCLGO_TEST_IB_DEVICES")
	if names == "" {
		t.Skip("MSCCLGO_TEST_IB_DEVICES does not name RDMA devices to test with")
	}
	list := strings.Split(names, ",")
	return [2]string{list[0], list[len(list)-1]}
}

// side is one rank.
type side struct {
	reg  *registeredmem.Registry
	t    *Transport
	conn *connection.Connection
	d    *conn // its driver
}

func newRegistry(t testing.TB, rank int) *registeredmem.Registry {
	t.Helper()
	r := testerr.Must(registeredmem.NewRegistry(registeredmem.Options{
		Rank: rank, Group: [16]byte{1}, Secret: [32]byte{2}, Device: testdev.Open(t, rank), Timeout: patience, Unmapped: true,
	}))(t)
	t.Cleanup(func() { r.Close() })
	return r
}

func newSide(t testing.TB, rank int, o Options) *side {
	t.Helper()
	if o.Device == "" {
		o.Device = testDevices(t)[rank]
	}
	reg := newRegistry(t, rank)
	transport := testerr.Must(New(reg, o))(t)
	t.Cleanup(func() {
		testerr.Report(t, errors.Join(reg.Close(), transport.Close()))
	})
	return &side{reg: reg, t: transport}
}

// newPair returns ranks 0 and 1, connected.
func newPair(t testing.TB, o Options) (a, b *side) {
	t.Helper()
	testDevices(t)
	a, b = newSide(t, 0, o), newSide(t, 1, o)
	connect(t, a, b)
	return a, b
}

func connect(t testing.TB, a, b *side) {
	t.Helper()
	var ends [2]*endpoint
	var data [2][]byte
	for i, s := range []*side{a, b} {
		e := testerr.Must(s.t.NewEndpoint())(t)
		ends[i] = e.(*endpoint)
		data[i] = testerr.Must(ends[i].MarshalBinary())(t)
	}
	for i, s := range []*side{a, b} {
		testerr.Check(t, s.connect(t, ends[i], data[1-i]))
	}
}

// connect connects one of its endpoints.
func (s *side) connect(t testing.TB, e *endpoint, remote []byte) (err error) {
	t.Helper()
	if s.d, err = e.connect(t.Context(), remote); err == nil {
		s.conn, err = connection.New(s.reg, s.d.peer, registeredmem.InfiniBand, s.d)
	}
	return err
}

// memory registers zeros, in device or pinned memory.
func (s *side) memory(t testing.TB, size uint64, pinned bool) *registeredmem.Memory {
	t.Helper()
	alloc := s.reg.Device().Alloc
	if pinned {
		alloc = s.reg.Device().AllocHost
	}
	b := testerr.Must(alloc(size))(t)
	testerr.Check(t, gpu.CopyIn(b, make([]byte, size)))
	m := testerr.Must(s.reg.Register(b))(t)
	t.Cleanup(func() {
		testerr.Report(t, errors.Join(m.Close(), b.Close()))
	})
	return m
}

// imported returns the peer's memory as s writes to it.
func (s *side) imported(t testing.TB, m *registeredmem.Memory) *registeredmem.Memory {
	t.Helper()
	data := testerr.Must(m.MarshalBinary())(t)
	return testerr.Must(s.reg.Import(t.Context(), data))(t)
}

func (s *side) flush(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	testerr.Check(t, s.conn.Flush(ctx))
}

func read(t testing.TB, m *registeredmem.Memory, offset uint64, values any) {
	t.Helper()
	var n uint64
	switch v := values.(type) {
	case []byte:
		n = uint64(len(v))
	case []uint64:
		n = 8 * uint64(len(v))
	}
	b, err := m.Buffer().Slice(offset, n)
	testerr.Check(t, err)
	switch v := values.(type) {
	case []byte:
		err = gpu.CopyOut(v, b)
	case []uint64:
		err = gpu.CopyOut(v, b)
	}
	testerr.Check(t, err)
}
