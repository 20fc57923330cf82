// Package emuimage is the envelope around a module for emulated devices: a
// checksum and a version, so that what package devicecode made and a device
// loads is whole. The system's loader trusts what it maps and would crash on a
// file that was cut short.
package emuimage

import (
	"github.com/mscclgo/mscclgo/internal/signature"
	"github.com/mscclgo/mscclgo/internal/wire"
)

var kind = [4]byte{'m', 'e', 'm', 'u'}

const version = 1

// Seal puts a shared object into its envelope.
func Seal(object []byte) []byte { return wire.Seal(kind, version, object) }

// Open returns the shared object in an envelope, or an error that says what is
// wrong with it. A description of the kernels' parameters may follow the envelope.
func Open(image []byte) ([]byte, error) {
	envelope, _, err := signature.Split(image)
	if err != nil {
		return nil, err
	}
	return wire.Open(kind, version, envelope)
}
