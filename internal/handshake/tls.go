package handshake

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"sync"
	"time"
)

// tlsConfig returns the configuration of both sides' TLS 1.3. The acceptor's
// certificate, made when the first dialer needs it, proves nothing: the handshake
// that follows proves membership and is bound to the session.
func tlsConfig() *tls.Config {
	certificate := sync.OnceValues(newCertificate)
	return &tls.Config{
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate() },
		MinVersion:             tls.VersionTLS13,
		InsecureSkipVerify:     true,
		SessionTicketsDisabled: true,
	}
}

func newCertificate() (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().AddDate(100, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// secure runs a TLS handshake and returns the connection with the session's
// exported key.
func secure(c *tls.Conn) (net.Conn, []byte, error) {
	if err := c.Handshake(); err != nil {
		var clear tls.RecordHeaderError
		if errors.As(err, &clear) && [4]byte(clear.RecordHeader[:]) == magic {
			err = ErrMode
		}
		return nil, nil, err
	}
	state := c.ConnectionState()
	binding, err := state.ExportKeyingMaterial("EXPORTER-mscclgo", nil, 32)
	return c, binding, err
}

// isTLS reports whether what a dialer sends begins as TLS does: with a record of
// its handshake (RFC 8446, 5.1).
func isTLS(start []byte) bool { return start[0] == 22 }

// rewound is a connection whose first bytes have been read already.
type rewound struct {
	net.Conn
	start []byte
}

func (r *rewound) Read(p []byte) (int, error) {
	if len(r.start) > 0 {
		n := copy(p, r.start)
		r.start = r.start[n:]
		return n, nil
	}
	return r.Conn.Read(p)
}

// NetConn returns the connection below, as [tls.Conn.NetConn] does.
func (r *rewound) NetConn() net.Conn { return r.Conn }
