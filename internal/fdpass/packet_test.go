package fdpass

import (
	"bytes"
	"testing"
)

// exchanged gives a whole conversation's packets as a server saw them.
func exchanged(t testing.TB, body string) (server, caller *conversation, answer []byte) {
	t.Helper()
	server = &conversation{key: testKey, name: "name"}
	caller = &conversation{key: testKey, name: "name"}
	if err := caller.greeted(server.greet()); err != nil {
		t.Fatal(err)
	}
	got, err := server.asked(caller.ask([]byte(body)))
	if err != nil || string(got) != body {
		t.Fatalf("%q, %v", got, err)
	}
	return server, caller, server.encode(answered{files: 1, value: 7, body: []byte(body)})
}

func TestPackets(t *testing.T) {
	_, caller, packet := exchanged(t, "body")
	a, err := caller.decode(packet)
	if err != nil || a.files != 1 || a.value != 7 || string(a.body) != "body" {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestAlteredPackets(t *testing.T) {
	server, caller, answer := exchanged(t, "body")
	request := bytes.Clone(caller.request)
	for i := range request {
		if _, err := server.asked(request[:i]); err == nil {
			t.Errorf("a request of %d bytes was taken", i)
		}
		request[i] ^= 0x10
		server.request = nil
		if _, err := server.asked(request); err == nil {
			t.Errorf("a request with byte %d altered was taken", i)
		}
		request[i] ^= 0x10
	}
	for i := range answer {
		if _, err := caller.decode(answer[:i]); err == nil {
			t.Errorf("an answer of %d bytes was taken", i)
		}
		answer[i] ^= 0x10
		if _, err := caller.decode(answer); err == nil {
			t.Errorf("an answer with byte %d altered was taken", i)
		}
		answer[i] ^= 0x10
	}
	greeting := new(conversation).greet()
	for i := range greeting {
		if err := new(conversation).greeted(greeting[:i]); err == nil {
			t.Errorf("a greeting of %d bytes was taken", i)
		}
	}
}

func FuzzRequest(f *testing.F) {
	_, caller, _ := exchanged(f, "body")
	f.Add(caller.request)
	f.Add([]byte("MGFD\x01"))
	f.Fuzz(func(t *testing.T, packet []byte) {
		s := conversation{key: testKey, name: "name"}
		s.greet()
		if body, err := s.asked(packet); err == nil {
			t.Errorf("a request with body %q was made without the greeting", body)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	_, caller, answer := exchanged(f, "body")
	f.Add(answer)
	f.Add([]byte("MGFD\x01"))
	f.Fuzz(func(t *testing.T, packet []byte) {
		if _, err := caller.decode(packet); err == nil && !bytes.Equal(packet, answer) {
			t.Error("an answer was made without the secret")
		}
	})
}

func FuzzGreeting(f *testing.F) {
	f.Add(new(conversation).greet())
	f.Add([]byte("MGFD\x01"))
	f.Fuzz(func(t *testing.T, packet []byte) {
		if err := new(conversation).greeted(packet); err == nil && len(packet) != greetSize {
			t.Errorf("a greeting of %d bytes was taken", len(packet))
		}
	})
}
