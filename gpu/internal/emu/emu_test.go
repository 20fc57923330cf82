package emu_test

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/gpu/internal/emu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// open opens emu:0 for one test.
func open(t testing.TB) backend.Device {
	t.Helper()
	d := testerr.Must(emu.Driver().Open(0))(t)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// compiled returns the image of a source.
func compiled(t testing.TB, source string) []byte {
	t.Helper()
	return testerr.Must(devicecode.Compile(t.Context(), "emu", t.Name()+".cu", []byte(source), devicecode.Options{}))(t)
}

// load compiles a source and loads it.
func load(t testing.TB, d backend.Device, source string) backend.Module {
	t.Helper()
	m := testerr.Must(d.LoadModule(compiled(t, source)))(t)
	t.Cleanup(func() { m.Close() })
	return m
}

func kernelOf(t testing.TB, m backend.Module, name string) backend.Kernel {
	t.Helper()
	return testerr.Must(m.Kernel(name))(t)
}

func stream(t testing.TB, d backend.Device) backend.Stream {
	t.Helper()
	return testerr.Must(d.NewStream())(t)
}

func alloc(t testing.TB, d backend.Device, size uint64) backend.Memory {
	t.Helper()
	m := testerr.Must(d.Alloc(size))(t)
	t.Cleanup(func() { m.Free() })
	return m
}

// shape is a row of blocks of a row of threads.
func shape(blocks, threads uint32) backend.LaunchConfig {
	return backend.LaunchConfig{Grid: [3]uint32{blocks, 1, 1}, Block: [3]uint32{threads, 1, 1}}
}

// pack lays out 4- and 8-byte arguments as C does.
func pack(args ...any) []byte {
	var b []byte
	for _, a := range args {
		for size := binary.Size(a); len(b)%size != 0; {
			b = append(b, 0)
		}
		b, _ = binary.Append(b, binary.LittleEndian, a)
	}
	return b
}

// deadline returns a context for the waits of a test.
func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// run launches a kernel and waits for it.
func run(t testing.TB, d backend.Device, k backend.Kernel, cfg backend.LaunchConfig, args ...any) error {
	t.Helper()
	s := stream(t, d)
	defer s.Close()
	testerr.Check(t, s.Launch(k, cfg, pack(args...)))
	return s.Synchronize(deadline(t))
}

// ran is run for kernels that must not fail.
func ran(t testing.TB, d backend.Device, k backend.Kernel, cfg backend.LaunchConfig, args ...any) {
	t.Helper()
	testerr.Check(t, run(t, d, k, cfg, args...))
}

// read copies values from the device.
func read[T any](t testing.TB, d backend.Device, ptr uint64, n int) []T {
	t.Helper()
	values := make([]T, n)
	data := make([]byte, binary.Size(values))
	testerr.Check(t, d.CopyToHost(data, ptr))
	testerr.Must(binary.Decode(data, binary.LittleEndian, values))(t)
	return values
}

// write copies values to the device.
func write[T any](t testing.TB, d backend.Device, ptr uint64, values []T) {
	t.Helper()
	data := testerr.Must(binary.Append(nil, binary.LittleEndian, values))(t)
	testerr.Check(t, d.CopyFromHost(ptr, data))
}
