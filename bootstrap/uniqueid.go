package bootstrap

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/wire"
)

const (
	groupSize  = 16 // bytes of a group number
	secretSize = 32 // bytes of a group's secret

	idPrefix  = "mscclgo."
	idVersion = 1
	maxHosts  = 8
	maxHost   = 255 // a DNS name's limit
)

var idKind = [4]byte{'M', 'G', 'I', 'D'}

// A UniqueID names one group of ranks: where its rendezvous listens, a group
// number, and the secret that proves membership. Everyone who has it can join,
// so it travels as a password would.
//
// Only [UniqueID.String] returns the text with the secret. Package fmt and
// log/slog print the group number and the address of an id, or of anything that
// contains it.
type UniqueID struct {
	hosts  string // comma-separated names or addresses, tried together
	port   uint16
	hosted bool // rank 0 opens the rendezvous itself
	opened bool // the rendezvous has listened before any rank heard of it
	group  [groupSize]byte
	// Behind a function, because fmt prints the unexported fields of structs
	// around this one without calling Format, and what pointers point to.
	secret func() [secretSize]byte
}

// An idBody is what the text of an id has.
type idBody struct {
	group  [groupSize]byte
	secret [secretSize]byte
	hosted bool
	port   uint16
	hosts  string `wire:"2048"` // maxHosts names and commas
}

var idCodec = wire.For[idBody]()

// NewUniqueID returns the id of a new group whose rank 0 will listen at addr, a
// host and a port. It is for launchers that know that a port is free on rank 0's
// host. A process that can listen itself (rank 0, or a launcher on the same
// network) uses [NewRendezvous] instead, which lets the system choose the port
// and leaves no time in which another program can take it.
func NewUniqueID(addr string) (UniqueID, error) {
	const op = "bootstrap: make a unique id"
	host, port, err := splitHostPort(addr)
	if err != nil {
		return UniqueID{}, mscclgo.Errorf(mscclgo.ErrInvalid, op, "address %q: %w", addr, err)
	}
	if host == "" || port == 0 {
		return UniqueID{}, mscclgo.Errorf(mscclgo.ErrInvalid, op,
			"address %q needs a host and a port above 0; use NewRendezvous to have a port chosen", addr)
	}
	return newID([]string{host}, port, true), nil
}

// newID returns an id with a fresh group number and secret.
func newID(hosts []string, port uint16, hosted bool) UniqueID {
	var secret [secretSize]byte
	rand.Read(secret[:]) // never fails: it ends the process instead
	id := UniqueID{hosts: strings.Join(hosts, ","), port: port, hosted: hosted, secret: hide(secret)}
	rand.Read(id.group[:])
	return id
}

func hide(secret [secretSize]byte) func() [secretSize]byte {
	return func() [secretSize]byte { return secret }
}

// Group returns the group's number, which is not a secret.
func (id UniqueID) Group() [groupSize]byte { return id.group }

// IsZero reports whether id is the zero value, which names no group.
func (id UniqueID) IsZero() bool { return id.secret == nil }

// Addr returns where the rendezvous listens: "host:port", or several of them
// separated by commas.
func (id UniqueID) Addr() string { return strings.Join(id.addrs(), ",") }

func (id UniqueID) addrs() []string {
	if id.IsZero() {
		return nil
	}
	addrs := strings.Split(id.hosts, ",")
	for i, h := range addrs {
		addrs[i] = net.JoinHostPort(h, strconv.Itoa(int(id.port)))
	}
	return addrs
}

// String returns the id as printable text without spaces, secret included,
// which [ParseUniqueID] parses. For the zero id it returns "".
func (id UniqueID) String() string {
	if id.IsZero() {
		return ""
	}
	body := idCodec.Marshal(&idBody{id.group, id.secret(), id.hosted, id.port, id.hosts})
	return idPrefix + base64.RawURLEncoding.EncodeToString(wire.Seal(idKind, idVersion, body))
}

// ParseUniqueID parses the text that [UniqueID.String] returned. The error, an
// ErrInvalid, describes what is wrong with the text and does not repeat it.
func ParseUniqueID(s string) (UniqueID, error) {
	id, err := parseID(s)
	if err != nil {
		return UniqueID{}, mscclgo.Errorf(mscclgo.ErrInvalid, "bootstrap: read a unique id", "%w", err)
	}
	return id, nil
}

func parseID(s string) (UniqueID, error) {
	text, ok := strings.CutPrefix(s, idPrefix)
	if !ok {
		return UniqueID{}, fmt.Errorf("%d characters that do not start with %q", len(s), idPrefix)
	}
	// Strict refuses texts that differ in bits that are in no byte, but even so
	// it skips line breaks.
	if i := strings.IndexAny(text, "\r\n"); i >= 0 {
		return UniqueID{}, fmt.Errorf("a line break at character %d", len(idPrefix)+i)
	}
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return UniqueID{}, fmt.Errorf("after %q: %w", idPrefix, err)
	}
	body, err := wire.Open(idKind, idVersion, sealed)
	if err != nil {
		return UniqueID{}, err
	}
	all, err := idCodec.Unmarshal(body)
	if err != nil {
		return UniqueID{}, err
	}
	id := UniqueID{hosts: all.hosts, port: all.port, hosted: all.hosted, group: all.group, secret: hide(all.secret)}
	return id, id.check()
}

// check finds fields that no valid id has.
func (id UniqueID) check() error {
	if id.port == 0 {
		return fmt.Errorf("port 0")
	}
	hosts := strings.Split(id.hosts, ",")
	if len(hosts) > maxHosts {
		return fmt.Errorf("%d addresses, at most %d are allowed", len(hosts), maxHosts)
	}
	for _, h := range hosts {
		if err := checkHost(h); err != nil {
			return err
		}
	}
	return nil
}

// checkHost accepts what can be a DNS name or an address, with or without zone.
func checkHost(h string) error {
	if h == "" || len(h) > maxHost {
		return fmt.Errorf("a host name of %d characters", len(h))
	}
	for _, c := range h {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.ContainsRune(".-_:%", c):
		default:
			return fmt.Errorf("host name %q has the character %q", h, c)
		}
	}
	if _, err := netip.ParseAddr(h); err != nil && strings.ContainsAny(h, ":%") {
		return fmt.Errorf("%q is neither a host name nor an address; a port does not belong in it", h)
	}
	return nil
}

// splitHostPort is net.SplitHostPort with the port as a number and the host
// checked. An empty host stands for every address of this machine.
func splitHostPort(addr string) (host string, port uint16, err error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("port %q is not a number from 0 to 65535", text)
	}
	if host != "" {
		err = checkHost(host)
	}
	return host, uint16(n), err
}

func (id UniqueID) redacted() string {
	if id.IsZero() {
		return "no group"
	}
	return fmt.Sprintf("group %x at %s", id.group[:4], id.Addr())
}

// Format prints the id without its secret, for every verb.
func (id UniqueID) Format(f fmt.State, _ rune) { io.WriteString(f, id.redacted()) }

// LogValue returns the id without its secret, for log/slog.
func (id UniqueID) LogValue() slog.Value { return slog.StringValue(id.redacted()) }
