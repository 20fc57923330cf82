package cuda

import _ "embed"

// atomicsCode is kernels of one atomic operation each.
//
//go:embed atomics.ptx
var atomicsCode []byte

// newAtomics returns the kernels of Stream.Add64 and Stream.Exchange64.
func newAtomics() builtin {
	return builtin{what: "load the kernels of atomic operations", code: atomicsCode, names: []string{"mscclgo_add", "mscclgo_exchange"}}
}

// PrepareAtomics loads the kernels.
func (d *device) PrepareAtomics() error {
	_, err := d.atomics.load(d.primary)
	return err
}

// Add64 is a launch of one thread, and allocates nothing.
func (s *stream) Add64(dst, value uint64) error {
	kernels, err := s.atomics.load(s.primary)
	if err != nil {
		return err
	}
	args := [2]uint64{dst, value}
	if rc := s.launchOne(kernels[0], args[:]); rc != 0 {
		return s.fail(rc, "add to the word at %#x", dst)
	}
	return nil
}

// Exchange64 is a launch of one thread, and allocates nothing.
func (s *stream) Exchange64(dst, value, old uint64) error {
	kernels, err := s.atomics.load(s.primary)
	if err != nil {
		return err
	}
	args := [3]uint64{dst, value, old}
	if rc := s.launchOne(kernels[1], args[:]); rc != 0 {
		return s.fail(rc, "exchange the word at %#x", dst)
	}
	return nil
}
