package ib

import "testing"

// TestEndpointOfClosed uses an endpoint of a transport that is closed.
func TestEndpointOfClosed(t *testing.T) {
	testDevices(t)
	s := newSide(t, 0, Options{})
	e, err := s.t.NewEndpoint()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.t.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := e.MarshalBinary(); err != nil {
		t.Error(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
