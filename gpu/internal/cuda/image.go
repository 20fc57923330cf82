package cuda

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// elfCUDA is the machine number of a cubin (EM_CUDA).
const elfCUDA elf.Machine = 190

// A fatbin begins with a header: fatbinMagic (4 bytes), version (2), size of the header
// (2), size of the rest (8).
const (
	fatbinMagic  = 0xba55ed50
	fatbinHeader = 16
)

// checkImage returns an error if a module image is not of a known kind or is truncated.
// The driver takes a pointer without a length and trusts the offsets in the image, so a
// truncated one must not reach it.
func checkImage(image []byte) error {
	switch {
	case len(image) == 0:
		return errors.New("the image is empty")
	case bytes.HasPrefix(image, []byte(elf.ELFMAG)):
		return checkCubin(image)
	case len(image) >= fatbinHeader && binary.LittleEndian.Uint32(image) == fatbinMagic:
		return checkFatbin(image)
	case bytes.Contains(image, []byte(".version")) && bytes.Contains(image, []byte(".target")):
		if i := bytes.IndexByte(image, 0); i >= 0 && i < len(image)-1 {
			return fmt.Errorf("the image looks like PTX but has a zero byte at offset %d", i)
		}
		return nil
	}
	return errors.New("the image is neither PTX, a cubin nor a fatbin: make one with devicecode, or with nvcc -ptx, -cubin or -fatbin")
}

func checkCubin(image []byte) error {
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return fmt.Errorf("the image is a damaged cubin: %w", err)
	}
	if f.Machine != elfCUDA {
		return fmt.Errorf("the image is an ELF file for %v, not for a GPU: make it with nvcc -cubin", f.Machine)
	}
	size := uint64(len(image))
	for _, s := range f.Sections {
		if s.Type != elf.SHT_NOBITS && (s.Offset > size || s.FileSize > size-s.Offset) {
			return fmt.Errorf("the image is a cubin of %d bytes that is truncated: section %q ends at %d",
				size, s.Name, saturatingAdd(s.Offset, s.FileSize))
		}
	}
	for _, p := range f.Progs {
		if p.Off > size || p.Filesz > size-p.Off {
			return fmt.Errorf("the image is a cubin of %d bytes that is truncated: a segment ends at %d",
				size, saturatingAdd(p.Off, p.Filesz))
		}
	}
	return nil
}

func checkFatbin(image []byte) error {
	header := uint64(binary.LittleEndian.Uint16(image[6:]))
	body := binary.LittleEndian.Uint64(image[8:])
	if size := uint64(len(image)); header < fatbinHeader || header > size || body > size-header {
		return fmt.Errorf("the image is a fatbin of %d bytes that is truncated: by its header it has %d",
			size, saturatingAdd(header, body))
	}
	return nil
}

func saturatingAdd(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}
