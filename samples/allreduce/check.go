package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/gpu"
)

// value returns element i of a rank's input: a small number, so that results are exact
// in every type and order.
func (s *sample) value(rank int, i uint64) float32 {
	v := uint64(rank)*5 + i*3 + i>>7
	if s.op == collective.Prod {
		return float32(1 + v%2)
	}
	return float32(v % 8)
}

// reduced returns element i of the output.
func (s *sample) reduced(i uint64) float32 {
	result := s.value(0, i)
	for rank := 1; rank < s.comm.Size(); rank++ {
		switch v := s.value(rank, i); s.op {
		case collective.Sum, collective.Avg:
			result += v
		case collective.Prod:
			result *= v
		case collective.Max:
			result = max(result, v)
		case collective.Min:
			result = min(result, v)
		}
	}
	if s.op == collective.Avg {
		result /= float32(s.comm.Size())
	}
	return result
}

// encode appends an element to b.
func encode(b []byte, t collective.Type, v float32) []byte {
	switch t {
	case collective.F32:
		return binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	case collective.F16:
		return binary.LittleEndian.AppendUint16(b, uint16(collective.NewFloat16(v)))
	case collective.BF16:
		return binary.LittleEndian.AppendUint16(b, uint16(collective.NewBFloat16(v)))
	case collective.F64:
		return binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(v)))
	case collective.I32:
		return binary.LittleEndian.AppendUint32(b, uint32(int32(v)))
	case collective.I64:
		return binary.LittleEndian.AppendUint64(b, uint64(int64(v)))
	case collective.F8E4M3:
		return append(b, byte(collective.NewFloat8E4M3(v)))
	case collective.F8E5M2:
		return append(b, byte(collective.NewFloat8E5M2(v)))
	}
	return append(b, byte(int32(v)))
}

// check runs an all-reduce of count elements once and returns how many of them are
// wrong, of all ranks.
func (s *sample) check(ctx context.Context, stream *gpu.Stream, queue launch, count uint64) (wrong uint64, err error) {
	var data, want []byte
	for i := range count {
		data = encode(data, s.typ, s.value(s.comm.Rank(), i))
		want = encode(want, s.typ, s.reduced(i))
	}
	if err := gpu.CopyIn(s.out, bytes.Repeat([]byte{0xff}, len(data))); err != nil {
		return 0, err
	}
	if err := gpu.CopyIn(s.in, data); err != nil { // which is the output, in place
		return 0, err
	}
	if _, err := s.comm.Time(ctx, stream, func() error { return queue(stream) }); err != nil {
		return 0, err
	}
	if err := gpu.CopyOut(data, s.out); err != nil {
		return 0, err
	}
	for size := s.typ.Size(); len(want) > 0; data, want = data[size:], want[size:] {
		if !bytes.Equal(data[:size], want[:size]) {
			wrong++
		}
	}
	all, err := s.comm.AllGather(ctx, binary.LittleEndian.AppendUint64(nil, wrong))
	if err != nil {
		return 0, err
	}
	wrong = 0
	for _, b := range all {
		wrong += binary.LittleEndian.Uint64(b)
	}
	return wrong, nil
}

// times queues an operation a number of times, unless the group fails.
func (s *sample) times(n int, queue launch, stream *gpu.Stream) func() error {
	return func() error {
		for range n {
			if err := queue(stream); err != nil {
				return err
			}
			if err := s.comm.Err(); err != nil {
				return err
			}
		}
		return nil
	}
}
