package bootstrap

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/wire"
)

func testID(t testing.TB) UniqueID {
	t.Helper()
	id, err := NewUniqueID("node-1.example:29500")
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestUniqueIDRoundTrip(t *testing.T) {
	id := testID(t)
	text := id.String()
	if strings.ContainsAny(text, " \t\n\"'$\\") {
		t.Errorf("%q needs quoting in a shell", text)
	}
	got, err := ParseUniqueID(text)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != text || got.secret() != id.secret() || got.group != id.group || got.Addr() != "node-1.example:29500" || !got.hosted {
		t.Errorf("%q became %q", text, got.String())
	}
	if other := testID(t); other.group == id.group || other.secret() == id.secret() {
		t.Error("two ids share a group number or a secret")
	}
	if (UniqueID{}).String() != "" || !(UniqueID{}).IsZero() || id.IsZero() {
		t.Error("the zero id is taken for another")
	}
}

func TestParseUniqueIDErrors(t *testing.T) {
	good := testID(t)
	text := good.String()
	sealed, err := base64.RawURLEncoding.DecodeString(text[len(idPrefix):])
	if err != nil {
		t.Fatal(err)
	}
	altered := func(f func([]byte) []byte) string {
		return idPrefix + base64.RawURLEncoding.EncodeToString(f(bytes.Clone(sealed)))
	}
	body := func(hosts string, port uint16) string {
		id := good
		id.hosts, id.port = hosts, port
		return id.String()
	}
	for name, c := range map[string]struct{ text, want string }{
		"empty":        {"", "0 characters"},
		"prefix":       {"nccl." + text, "do not start with"},
		"characters":   {text + " ", "illegal base64"},
		"line break":   {text[:20] + "\n" + text[20:], "line break at character 20"},
		"cut short":    {text[:len(text)-8], "checksum"},
		"nothing left": {idPrefix, "cut short"},
		"bit flipped":  {altered(func(b []byte) []byte { b[30] ^= 4; return b }), "checksum"},
		"version":      {altered(func(b []byte) []byte { b[4] = 9; return b }), "version 9"},
		"kind":         {altered(func(b []byte) []byte { b[0] = 'X'; return b }), "XGID"},
		"body":         {altered(func([]byte) []byte { return wire.Seal(idKind, idVersion, make([]byte, 20)) }), "cut short"},
		"left over":    {altered(func(b []byte) []byte { return wire.Seal(idKind, idVersion, append(b[5:len(b)-4:len(b)-4], 0)) }), "left over"},
		"port":         {body("localhost", 0), "port 0"},
		"no host":      {body("", 1), "0 characters"},
		"host":         {body("a b", 1), "a b"},
		"hosts":        {body("a,a,a,a,a,a,a,a,a", 1), "9 addresses"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseUniqueID(c.text)
			wantError(t, err, mscclgo.ErrInvalid, c.want)
			if err != nil && len(c.text) > 20 && strings.Contains(err.Error(), c.text[10:]) {
				t.Error("the error repeats the secret")
			}
		})
	}
}

func TestNewUniqueIDErrors(t *testing.T) {
	for addr, want := range map[string]string{
		"localhost":       "missing port",
		"localhost:0":     "NewRendezvous",
		":29500":          "needs a host",
		"localhost:99999": "99999",
		"two words:1":     "two words",
	} {
		_, err := NewUniqueID(addr)
		wantError(t, err, mscclgo.ErrInvalid, want)
		if addr == ":29500" || addr == "localhost:0" {
			continue // a rendezvous can do these
		}
		_, err = NewRendezvous(addr, quiet)
		wantError(t, err, mscclgo.ErrInvalid, want)
	}
}

// No way of printing an id, or of what holds one, shows the secret.
func TestSecretIsNotPrinted(t *testing.T) {
	id := testID(t)
	type hidden struct{ id UniqueID }
	var log bytes.Buffer
	l := slog.New(slog.NewJSONHandler(&log, nil))
	l.Info("x", "id", id, "config", Options{ID: id}, "hidden", hidden{id})
	l = slog.New(slog.NewTextHandler(&log, nil))
	l.Info("x", "id", id, "config", Options{ID: id}, "hidden", hidden{id})
	for _, v := range []any{id, &id, Options{ID: id}, &Options{ID: id}, hidden{id}, []UniqueID{id}, map[string]UniqueID{"a": id}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&log, verb+"\n", v)
		}
		if j, err := json.Marshal(v); err == nil {
			log.Write(j)
		}
	}
	secret := id.secret()
	s := secret[:]
	for _, form := range []string{
		id.String()[20:60], fmt.Sprintf("%x", s[4:12]), fmt.Sprint(s[4:12])[1:20], string(s[4:12]),
		strings.ReplaceAll(fmt.Sprint(s[4:12]), " ", ", ")[1:20], fmt.Sprintf("%#v", s[4:8])[7:20],
		base64.StdEncoding.EncodeToString(s)[:16],
	} {
		if strings.Contains(log.String(), form) {
			t.Errorf("the secret is printed as %q", form)
		}
	}
	if !strings.Contains(log.String(), "node-1.example:29500") {
		t.Error("the address is not printed")
	}
}

func FuzzParseUniqueID(f *testing.F) {
	f.Add(testID(f).String())
	f.Add(newID([]string{"::1", "10.0.0.1"}, 1, false).String())
	f.Add("mscclgo.")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		id, err := ParseUniqueID(text)
		if err == nil && id.String() != text {
			t.Fatalf("%q reads as an id that writes %q", text, id.String())
		}
	})
}
