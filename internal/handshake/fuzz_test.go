package handshake

import (
	"io"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func FuzzHello(f *testing.F) {
	f.Add(hello{version: 1, protocol: 2, tls: true, nonce: [nonceSize]byte{3}}.encode())
	f.Add([]byte("220 mail.example"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := decodeHello(b); err == nil {
			if diff := cmp.Diff(b, h.encode()); diff != "" {
				t.Fatalf("it reads as another hello (-want +got):\n%s", diff)
			}
		}
	})
}

// FuzzServer sends an acceptor whatever a stranger may send.
func FuzzServer(f *testing.F) {
	start := hello{version: version, protocol: testOptions.Version}.encode()
	f.Add(append(start, make([]byte, testOptions.ClaimSize+proofSize)...), false)
	f.Add([]byte("GET / HTTP/1.1\r\n"), false)
	f.Add([]byte{22, 3, 1, 0, 5, 1, 0, 0, 1, 3}, true)
	clear, either := New(testOptions), New(with(func(o *Options) { o.Mode = Either }))
	f.Fuzz(func(t *testing.T, b []byte, tls bool) {
		m := clear
		if tls {
			m = either
		}
		d, a := net.Pipe()
		go io.Copy(io.Discard, d)
		go func() {
			d.Write(b)
			d.Close()
		}()
		_, err := m.Server(a, func(net.Conn, []byte) error { t.Error("a stranger was admitted"); return nil })
		a.Close()
		if err == nil {
			t.Fatal("a stranger's handshake succeeded")
		}
	})
}

// FuzzClient answers a dialer with whatever a stranger may answer.
func FuzzClient(f *testing.F) {
	start := hello{version: version, protocol: testOptions.Version}.encode()
	f.Add(append(start, make([]byte, 1+proofSize)...))
	f.Add([]byte("220 mail.example"))
	m := New(testOptions)
	f.Fuzz(func(t *testing.T, b []byte) {
		d, a := net.Pipe()
		go io.Copy(io.Discard, a)
		go func() {
			a.Write(b)
			a.Close()
		}()
		_, err := m.Client(t.Context(), d, testClaim)
		d.Close()
		if err == nil {
			t.Fatal("a stranger's handshake succeeded")
		}
	})
}
