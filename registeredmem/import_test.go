package registeredmem

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/fdpass"
	"github.com/mscclgo/mscclgo/internal/hostid"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

func TestSameProcess(t *testing.T) {
	theirs, mine := newRegistry(t, config(t, 0)), newRegistry(t, config(t, 1))
	whole := upload(t, theirs.Device(), 5000, 1)
	part, err := whole.Slice(8, 1000)
	testerr.Check(t, err)
	_, data := register(t, theirs, part)
	m := mustImport(t, mine, data)
	if m.Rank() != 0 || m.Size() != 1000 || m.Local() || m.Transports() != CudaIPC || m.Registry() != mine {
		t.Errorf("%v: local %v, transports %v", m, m.Local(), m.Transports())
	}
	if m.Buffer().Ptr() != part.Ptr() || m.Buffer().Device() != mine.Device() {
		t.Errorf("imported %#x on %v, not the pointer %#x itself on %v",
			m.Buffer().Ptr(), m.Buffer().Device(), part.Ptr(), mine.Device())
	}
	expectBytes(t, m.Buffer(), counting(1000, 9))
	testerr.Check(t, gpu.CopyIn(m.Buffer(), []byte{77}))
	expectBytes(t, part, []byte{77, 10})
	_, err = m.MarshalBinary()
	testerr.Expect(t, err, mscclgo.ErrInvalid, "imported")
	testerr.Check(t, m.Close())
	expectBytes(t, part, []byte{77, 10})
}

// TestClosedByOwner has the owner of a memory, in this process, end before a kernel of the
// importing rank might.
func TestClosedByOwner(t *testing.T) {
	theirs, mine := newRegistry(t, config(t, 0)), newRegistry(t, config(t, 1))
	whole := upload(t, theirs.Device(), 5000, 1)
	_, data := register(t, theirs, whole)
	m := mustImport(t, mine, data)
	ptr := m.Buffer().Ptr()
	for _, c := range []io.Closer{whole, theirs} {
		testerr.Check(t, c.Close())
	}
	still := testerr.Must(theirs.Device().Wrap(ptr, 5000))(t)
	expectBytes(t, still, counting(5000, 1))
	testerr.Check(t, m.Close())
	if _, err := theirs.Device().Wrap(ptr, 5000); err == nil {
		t.Error("the memory is still there when nobody has it open")
	}
}

func TestOwnBytes(t *testing.T) {
	r := newRegistry(t, config(t, 0))
	b := upload(t, r.Device(), 100, 0)
	local, data := register(t, r, b)
	m := mustImport(t, r, data)
	if m.Buffer() != b || m.Local() || m.Rank() != 0 {
		t.Errorf("%v has another buffer", m)
	}
	testerr.Check(t, m.Close())
	if local.Buffer() != b {
		t.Error("closing the import closed the memory")
	}
	testerr.Check(t, local.Close())
	_, err := r.Import(t.Context(), data)
	testerr.Expect(t, err, mscclgo.ErrInvalid, "not registered", "rank 0")
}

func TestOtherProcess(t *testing.T) {
	before := openFiles(t)
	mine := newRegistry(t, config(t, 0))
	p := startPeer(t)
	whole := p.register("whole")
	// The driver opens files of its own for the first import.
	testerr.Check(t, mustImport(t, mine, whole).Close())
	started := openFiles(t)
	m := mustImport(t, mine, whole)
	expectBytes(t, m.Buffer(), counting(childBytes, childFirst))
	testerr.Check(t, gpu.CopyIn(m.Buffer(), []byte{200}))
	if got := p.do("byte whole"); got != "200" {
		t.Errorf("the peer reads %s, not 200", got)
	}

	// Slices of the same allocation share the one mapping.
	parts := make([]*Memory, 4)
	for i := range parts {
		parts[i] = mustImport(t, mine, p.register(fmt.Sprint(i)))
		if parts[i].Size() != sliceBytes {
			t.Errorf("%v", parts[i])
		}
		first := sliceOffset + i*sliceBytes
		expectBytes(t, parts[i].Buffer(), counting(sliceBytes, childFirst+byte(first)))
		testerr.Check(t, gpu.CopyIn(parts[i].Buffer(), []byte{byte(100 + i)}))
		if got := p.do("byte " + fmt.Sprint(i)); got != fmt.Sprint(100+i) {
			t.Errorf("slice %d of the peer starts with %s", i, got)
		}
	}
	if len(mine.mappings.live) != 1 {
		t.Errorf("%d mappings of one allocation", len(mine.mappings.live))
	}
	testerr.Check(t, m.Close())
	for i, part := range parts {
		expectBytes(t, part.Buffer(), []byte{byte(100 + i)})
		for range 2 {
			testerr.Check(t, part.Close())
		}
	}
	if len(mine.mappings.live) != 0 {
		t.Errorf("%d mappings are left", len(mine.mappings.live))
	}
	expectFiles(t, started, 0)
	testerr.Check(t, mine.Close())
	p.kill()
	if testdev.CUDA() {
		return // the driver keeps descriptors of its own
	}
	// The test binary's poller may have come in between: two descriptors.
	expectFiles(t, 0, before+2)
}

func TestImportManyAtOnce(t *testing.T) {
	mine := newRegistry(t, config(t, 0))
	p := startPeer(t)
	data := [][]byte{p.register("whole")}
	for i := range 7 {
		data = append(data, p.register(fmt.Sprint(i)))
	}
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			m, err := mine.Import(t.Context(), data[i%len(data)])
			if err != nil {
				t.Error(err)
				return
			}
			one := make([]byte, 1)
			testerr.Report(t, gpu.CopyOut(one, m.Buffer()))
			testerr.Report(t, m.Close())
		})
	}
	wg.Wait()
	if len(mine.mappings.live) != 0 {
		t.Errorf("%d mappings are left", len(mine.mappings.live))
	}
}

func TestStaleMemory(t *testing.T) {
	mine := newRegistry(t, config(t, 0))
	t.Run("unregistered in another process", func(t *testing.T) {
		p := startPeer(t)
		kept := mustImport(t, mine, p.register("whole"))
		part := p.register("0")
		p.do("unregister 0")
		_, err := mine.Import(t.Context(), part)
		testerr.Expect(t, err, mscclgo.ErrRemote, "rank 0, peer 1", "not registered")
		whole := p.register("1")
		p.kill()
		_, err = mine.Import(t.Context(), whole)
		testerr.Expect(t, err, mscclgo.ErrRemote, "rank 0, peer 1", "nobody listens")
		if !testdev.CUDA() {
			expectBytes(t, kept.Buffer(), counting(100, childFirst))
		}
	})
	t.Run("unregistered in this process", func(t *testing.T) {
		theirs := newRegistry(t, config(t, 1))
		m, data := register(t, theirs, upload(t, theirs.Device(), 8, 0))
		testerr.Check(t, m.Close())
		_, err := mine.Import(t.Context(), data)
		testerr.Expect(t, err, mscclgo.ErrRemote, "rank 0, peer 1", "not registered")
	})
	t.Run("buffer closed", func(t *testing.T) {
		theirs := newRegistry(t, config(t, 1))
		b := upload(t, theirs.Device(), 8, 0)
		_, data := register(t, theirs, b)
		testerr.Check(t, b.Close())
		_, err := mine.Import(t.Context(), data)
		testerr.Expect(t, err, mscclgo.ErrRemote, "rank 0, peer 1", "closed")
	})
	t.Run("registry closed", func(t *testing.T) {
		theirs := newRegistry(t, config(t, 1))
		_, data := register(t, theirs, upload(t, theirs.Device(), 8, 0))
		testerr.Check(t, theirs.Close())
		_, err := mine.Import(t.Context(), data)
		testerr.Expect(t, err, mscclgo.ErrRemote, "rank 0, peer 1", "nobody listens")
	})
}

func TestOutOfReach(t *testing.T) {
	mine, theirs := newRegistry(t, config(t, 0)), newRegistry(t, config(t, 1))
	m, data := register(t, theirs, upload(t, theirs.Device(), 8, 0))

	about := m.about
	about.device = [16]byte{0xab, 0xcd}
	_, err := mine.Import(t.Context(), about.encode())
	testerr.Expect(t, err, mscclgo.ErrUnsupported, "rank 0, peer 1", "abcd", map[bool]string{true: "CUDA_VISIBLE_DEVICES", false: "emulated"}[testdev.CUDA()])

	about = m.about
	about.transports = InfiniBand
	_, err = mine.Import(t.Context(), about.encode())
	testerr.Expect(t, err, mscclgo.ErrUnsupported, "rank 0, peer 1", "InfiniBand")

	t.Setenv(hostid.Env, "elsewhere")
	cfg := config(t, 2)
	_, err = newRegistry(t, cfg).Import(t.Context(), data)
	testerr.Expect(t, err, mscclgo.ErrUnsupported, "rank 2, peer 1", "elsewhere")

	cfg = config(t, 3)
	cfg.Host = "of its own" // before the variable
	_, err = newRegistry(t, cfg).Import(t.Context(), data)
	testerr.Expect(t, err, mscclgo.ErrUnsupported, "rank 3, peer 1", "of its own")

	cfg.Host = strings.Repeat("x", hostid.MaxSize+1)
	_, err = NewRegistry(cfg)
	testerr.Expect(t, err, mscclgo.ErrInvalid, "rank 3", "256 bytes")
}

func TestStrangers(t *testing.T) {
	log := new(logged)
	cfg := config(t, 0)
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	theirs := newRegistry(t, cfg)
	_, data := register(t, theirs, upload(t, theirs.Device(), 8, 0))

	cfg = config(t, 1)
	cfg.Secret[0] ^= 1
	_, err := newRegistry(t, cfg).Import(t.Context(), data)
	testerr.Expect(t, err, mscclgo.ErrRemote, "rank 1, peer 0", "secret")
	log.await(t, "secret")
	log.await(t, "rank=0")

	cfg = config(t, 1)
	cfg.Group[0] ^= 1
	_, err = newRegistry(t, cfg).Import(t.Context(), data)
	testerr.Expect(t, err, mscclgo.ErrInvalid, "rank 1, peer 0", "group")

	conn := testerr.Must(net.Dial("unixpacket", "@"+theirs.server.Name()))(t)
	defer conn.Close()
	testerr.Must(conn.Write([]byte("noise")))(t)
	mustImport(t, newRegistry(t, config(t, 2)), data)
}

// impostor is a member of the group with rank 1 that answers as it likes.
func impostor(t *testing.T, r *Registry, handle fdpass.Handler) (data []byte) {
	t.Helper()
	s := testerr.Must(fdpass.Listen(r.key(), 0, slog.New(slog.DiscardHandler), handle))(t)
	t.Cleanup(func() { s.Close() })
	return impostorBytes(r, s.Name())
}

func impostorBytes(r *Registry, socket string) []byte {
	about := description{
		group: r.Group(), rank: 1, instance: r.instance + 1, transports: CudaIPC, size: 64,
		host: r.Host(), device: r.Device().Info().UUID, socket: socket,
	}
	return about.encode()
}

func TestWrongAnswers(t *testing.T) {
	mine := newRegistry(t, config(t, 0))
	buf := upload(t, mine.Device(), 4096, 0)
	pipe := func() *os.File {
		r, w, err := os.Pipe()
		if err != nil {
			t.Error(err)
			return nil
		}
		w.Close()
		return r
	}
	good := answer{means: byDescriptor, capacity: buf.Internal().Capacity(), size: 64}
	at := func(change func(*answer)) []byte {
		a := good
		change(&a)
		return a.encode()
	}
	before := openFiles(t)
	for name, handle := range map[string]fdpass.Handler{
		"empty":         func([]byte, bool) fdpass.Answer { return fdpass.Answer{} },
		"noise":         func([]byte, bool) fdpass.Answer { return fdpass.Answer{Body: []byte("noise"), File: pipe()} },
		"no descriptor": func([]byte, bool) fdpass.Answer { return fdpass.Answer{Body: good.encode()} },
		"another size": func([]byte, bool) fdpass.Answer {
			return fdpass.Answer{Body: at(func(a *answer) { a.size = 65 }), File: pipe()}
		},
		"beyond the memory": func([]byte, bool) fdpass.Answer {
			return fdpass.Answer{Body: at(func(a *answer) { a.offset = a.capacity }), File: pipe()}
		},
		"no memory": func([]byte, bool) fdpass.Answer { return fdpass.Answer{Body: good.encode(), File: pipe()} },
		"a wrong handle": func([]byte, bool) fdpass.Answer {
			return fdpass.Answer{Body: at(func(a *answer) { a.means = byIPCHandle })}
		},
		"no value": func([]byte, bool) fdpass.Answer { return fdpass.Answer{Body: answer{means: byPointer}.encode()} },
		"a strange value": func([]byte, bool) fdpass.Answer {
			return fdpass.Answer{Body: answer{means: byPointer}.encode(), Value: 1}
		},
		"another buffer": func([]byte, bool) fdpass.Answer {
			return fdpass.Answer{Body: answer{means: byPointer}.encode(), Value: buf}
		},
	} {
		m, err := mine.Import(t.Context(), impostor(t, mine, handle))
		if err == nil {
			t.Errorf("%s: imported %v", name, m)
		}
	}
	if len(mine.mappings.live) != 0 {
		t.Errorf("%d mappings are left", len(mine.mappings.live))
	}
	expectFiles(t, before+10, 0) // ten servers listen now
}

// silent returns the bytes of memory whose server says nothing. The channel is closed once
// somebody asks it.
func silent(t *testing.T, r *Registry) ([]byte, <-chan struct{}) {
	t.Helper()
	random := make([]byte, 16)
	rand.Read(random)
	name := "mscclgo-" + hex.EncodeToString(random)
	ln := testerr.Must(net.Listen("unixpacket", "@"+name))(t)
	asked := make(chan struct{})
	go func() {
		conn, err := ln.Accept()
		close(asked)
		if err == nil {
			io.Copy(io.Discard, conn) // until the rank that asked gives up
			conn.Close()
		}
	}()
	t.Cleanup(func() { ln.Close() })
	return impostorBytes(r, name), asked
}

func TestImportEnds(t *testing.T) {
	cfg := config(t, 0)
	cfg.Timeout = 30 * time.Millisecond
	short := newRegistry(t, cfg)
	data, _ := silent(t, short)
	_, err := short.Import(t.Context(), data)
	testerr.Expect(t, err, mscclgo.ErrTimeout, "rank 0, peer 1")

	long := newRegistry(t, config(t, 0))
	ctx, cancel := context.WithCancel(t.Context())
	data, asked := silent(t, long)
	go func() { <-asked; cancel() }()
	_, err = long.Import(ctx, data)
	testerr.Expect(t, err, mscclgo.ErrAborted, "rank 0, peer 1")

	data, asked = silent(t, long)
	closed := make(chan error, 1)
	go func() { <-asked; closed <- long.Close() }()
	_, err = long.Import(t.Context(), data)
	testerr.Expect(t, err, mscclgo.ErrAborted, "rank 0, peer 1")
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// Memory that the driver's own allocator gave passes by legacy IPC handle.
func TestForeignMemory(t *testing.T) {
	if !testdev.CUDA() {
		t.Skip("an emulated device has no memory but its own; this needs " + testdev.Env + "=cuda")
	}
	mine := newRegistry(t, config(t, 0))
	p := startPeer(t, foreignEnv+"=1")
	whole := mustImport(t, mine, p.register("whole"))
	expectBytes(t, whole.Buffer(), counting(childBytes, childFirst))
	part := mustImport(t, mine, p.register("2"))
	first := sliceOffset + 2*sliceBytes
	expectBytes(t, part.Buffer(), counting(sliceBytes, childFirst+byte(first)))
	if len(mine.mappings.live) != 1 {
		t.Errorf("%d mappings of one allocation", len(mine.mappings.live))
	}
	testerr.Check(t, gpu.CopyIn(part.Buffer(), []byte{200}))
	if got := p.do("byte 2"); got != "200" {
		t.Errorf("the peer reads %s, not 200", got)
	}
}
