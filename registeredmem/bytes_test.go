package registeredmem

import (
	"bytes"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/wire"
)

var someMemory = description{
	group: [16]byte{1, 2}, rank: 3, instance: 4, id: 5, transports: CudaIPC, size: 6, phase: 7,
	host: "host", device: [16]byte{7}, socket: "mscclgo-" + strings.Repeat("0a", 16),
}

func TestAlteredBytes(t *testing.T) {
	r := newRegistry(t, config(t, 0))
	_, data := register(t, r, upload(t, r.Device(), 8, 0))
	mustImport(t, r, data)
	for i := range data {
		_, err := r.Import(t.Context(), data[:i])
		testerr.Expect(t, err, mscclgo.ErrInvalid, "rank 0")
		altered := bytes.Clone(data)
		altered[i] ^= 0x20
		_, err = r.Import(t.Context(), altered)
		testerr.Expect(t, err, mscclgo.ErrInvalid, "rank 0")
	}
	_, err := r.Import(t.Context(), append(bytes.Clone(data), 0))
	testerr.Expect(t, err, mscclgo.ErrInvalid)
	body := testerr.Must(wire.Open(formatKind, formatVersion, data))(t)
	_, err = r.Import(t.Context(), wire.Seal(formatKind, formatVersion+1, body))
	testerr.Expect(t, err, mscclgo.ErrInvalid, "version 4")
}

// Bytes with a good checksum can still say what cannot be.
func TestImpossibleBytes(t *testing.T) {
	if got, err := decode(someMemory.encode()); err != nil || got != someMemory {
		t.Fatalf("%+v, %v", got, err)
	}
	for name, change := range map[string]func(*description){
		"rank":       func(d *description) { d.rank = 1 << 31 },
		"transports": func(d *description) { d.transports = 1 << 9 },
		"no size":    func(d *description) { d.size = 0 },
		"size":       func(d *description) { d.size = 1 << 63 },
		"phase":      func(d *description) { d.phase = wordSize },
		"no host":    func(d *description) { d.host = "" },
		"socket":     func(d *description) { d.socket = "/run/socket" },
	} {
		d := someMemory
		change(&d)
		if _, err := decode(d.encode()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestBytesHoldNoAddressAndNoSecret(t *testing.T) {
	cfg := config(t, 0)
	for i := range cfg.Secret {
		cfg.Secret[i] = byte(200 + i)
	}
	r := newRegistry(t, cfg)
	b := upload(t, r.Device(), 8, 0)
	_, data := register(t, r, b)
	w := new(wire.Writer)
	w.U64(uint64(b.Ptr()))
	if bytes.Contains(data, w.Bytes()) {
		t.Error("the address is in the bytes")
	}
	for i := range len(cfg.Secret) - 3 {
		if bytes.Contains(data, cfg.Secret[i:i+4]) {
			t.Error("a part of the secret is in the bytes")
		}
	}
}

func TestAnswers(t *testing.T) {
	for _, a := range []answer{
		{means: byDescriptor, allocation: 1, capacity: 10, offset: 2, size: 8},
		{means: byIPCHandle, allocation: 1, capacity: 10, offset: 2, size: 8, handle: [64]byte{9}},
		{means: byPointer},
		{means: refused, kind: mscclgo.ErrRemote, reason: "a reason"},
		{means: refused, kind: mscclgo.ErrUnsupported, reason: strings.Repeat("x", 1024)},
	} {
		data := a.encode()
		if got, err := decodeAnswer(data); err != nil || got != a {
			t.Errorf("%+v became %+v, %v", a, got, err)
		}
		for i := range data {
			if _, err := decodeAnswer(data[:i]); err == nil {
				t.Errorf("%+v: %d bytes of %d were taken", a, i, len(data))
			}
		}
	}
	long := answer{means: refused, kind: mscclgo.ErrRemote, reason: strings.Repeat("x", 1025)}
	if got, err := decodeAnswer(long.encode()); err != nil || len(got.reason) != 1024 {
		t.Errorf("a long reason: %v", err)
	}
	for _, a := range []answer{
		{means: byDescriptor, capacity: 10, offset: 3, size: 8},
		{means: byDescriptor, capacity: 10, offset: 11},
		{means: byDescriptor, capacity: 10, offset: 1<<64 - 8, size: 16},
		{means: byDescriptor, capacity: 1 << 63},
		{},
		{means: refused + 1},
	} {
		if _, err := decodeAnswer(a.encode()); err == nil {
			t.Errorf("%+v was taken", a)
		}
	}
}

func TestServeWrongRequests(t *testing.T) {
	r := newRegistry(t, config(t, 0))
	register(t, r, upload(t, r.Device(), 8, 0))
	good := request{instance: r.instance}
	if a, err := decodeAnswer(r.serve(good.encode(), true).Body); err != nil || a.means != byPointer {
		t.Errorf("%+v, %v", a, err)
	}
	version := good.encode()
	version[0]++
	for name, data := range map[string][]byte{
		"empty":            nil,
		"cut short":        good.encode()[:12],
		"too long":         append(good.encode(), 0),
		"another version":  version,
		"another registry": request{instance: r.instance + 1}.encode(),
		"another memory":   request{instance: r.instance, id: 1}.encode(),
	} {
		got := r.serve(data, false)
		a, err := decodeAnswer(got.Body)
		if err != nil || a.means != refused || a.kind != mscclgo.ErrRemote || got.File != nil || got.Value != nil {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
}

func FuzzMemory(f *testing.F) {
	f.Add(someMemory.encode())
	f.Add([]byte("MGRM\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		// A fuzzer does not find checksums, so it also gets to write bodies.
		for _, data := range [][]byte{data, wire.Seal(formatKind, formatVersion, data)} {
			d, err := decode(data)
			if err == nil {
				testcmp.Equal(t, "the bytes encoded again", d.encode(), data)
			}
		}
	})
}

func FuzzRequest(f *testing.F) {
	f.Add(request{instance: 1, id: 2}.encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		if q, err := decodeRequest(data); err == nil {
			testcmp.Equal(t, "the bytes encoded again", q.encode(), data)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	f.Add(answer{means: byDescriptor, capacity: 10, size: 8}.encode())
	f.Add(answer{means: byIPCHandle, capacity: 10, size: 8}.encode())
	f.Add(answer{means: byPointer}.encode())
	f.Add(answer{means: refused, kind: mscclgo.ErrUnsupported, reason: "no"}.encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		if a, err := decodeAnswer(data); err == nil {
			testcmp.Equal(t, "the bytes encoded again", a.encode(), data)
		}
	})
}
