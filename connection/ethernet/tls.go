package ethernet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"time"
)

// newTLS gives the configuration of a rank's TLS 1.3. Its certificate is made up
// and proves nothing: the handshake that follows proves membership and binds it to
// the session's exported key, which two sessions with somebody between them would
// not share.
func newTLS() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().AddDate(100, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		Certificates:           []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		MinVersion:             tls.VersionTLS13,
		InsecureSkipVerify:     true,
		SessionTicketsDisabled: true,
	}, nil
}

// encrypt puts TLS on nc where the transport is to encrypt, and gives what proofs
// are bound to.
func (t *Transport) encrypt(ctx context.Context, nc net.Conn, wrap func(net.Conn, *tls.Config) *tls.Conn) (net.Conn, prover, error) {
	p := prover{secret: t.secret}
	if t.tls == nil {
		return nc, p, nil
	}
	c := wrap(nc, t.tls)
	if err := c.HandshakeContext(ctx); err != nil {
		return nc, p, err
	}
	state := c.ConnectionState()
	var err error
	p.binding, err = state.ExportKeyingMaterial("EXPORTER-mscclgo-ethernet", nil, 32)
	return c, p, err
}
