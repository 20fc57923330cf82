package cuda

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// cubin makes an ELF file that ends in a section of size bytes.
func cubin(machine uint16, size int) []byte { return cubinOf(machine, "", size) }

// cubinOf is cubin with a name for the section.
func cubinOf(machine uint16, name string, size int) []byte {
	const header, section = 64, 64
	names := len(name) + 2
	b := append([]byte("\x7fELF\x02\x01\x01\x41\x08"), make([]byte, header+3*section+names-9)...)
	le := binary.LittleEndian
	le.PutUint16(b[16:], 2) // executable
	le.PutUint16(b[18:], machine)
	le.PutUint32(b[20:], 1)
	le.PutUint64(b[40:], header) // where the section headers are
	le.PutUint16(b[52:], header)
	le.PutUint16(b[58:], section)
	le.PutUint16(b[60:], 3)
	le.PutUint16(b[62:], 1) // the first section after the empty one names the others
	for i, s := range []struct{ kind, at, size int }{{3, len(b) - names, names}, {1, len(b), size}} {
		h := b[header+(i+1)*section:]
		if i == 1 {
			le.PutUint32(h, 1)
		}
		le.PutUint32(h[4:], uint32(s.kind))
		le.PutUint64(h[24:], uint64(s.at))
		le.PutUint64(h[32:], uint64(s.size))
	}
	copy(b[len(b)-names+1:], name)
	return append(b, make([]byte, size)...)
}

func fatbin(version, header uint16, body uint64, size int) []byte {
	b := binary.LittleEndian.AppendUint32(nil, fatbinMagic)
	b = binary.LittleEndian.AppendUint16(b, version)
	b = binary.LittleEndian.AppendUint16(b, header)
	b = binary.LittleEndian.AppendUint64(b, body)
	return append(b, make([]byte, size)...)
}

var images = []struct {
	name  string
	image []byte
	wrong string // empty: it passes
}{
	{"PTX", kernels, ""},
	{"PTX with its zero", append(bytes.Clone(kernels), 0), ""},
	{"PTX with a zero inside", append(append(bytes.Clone(kernels), 0), kernels...), "zero byte"},
	{"cubin", cubin(190, 100), ""},
	{"cut cubin", cubin(190, 100)[:300], "truncated"},
	{"cut cubin header", cubin(190, 100)[:40], "damaged"},
	{"host program", cubin(62, 100), "EM_X86_64"},
	{"fatbin", fatbin(1, 16, 100, 100), ""},
	{"cut fatbin", fatbin(1, 16, 100, 99), "truncated"},
	{"fatbin of huge size", fatbin(1, 16, 1<<64-1, 99), "truncated"},
	{"fatbin of small header", fatbin(1, 8, 10, 99), "truncated"},
	{"empty", nil, "empty"},
	{"CUDA C++", []byte("__global__ void k() {}"), "neither"},
}

func TestCheckImage(t *testing.T) {
	for _, test := range images {
		err := checkImage(test.image)
		if test.wrong == "" && err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if test.wrong != "" && (err == nil || !strings.Contains(err.Error(), test.wrong)) {
			t.Errorf("%s: error is %v, want one with %q", test.name, err, test.wrong)
		}
	}
}

func FuzzCheckImage(f *testing.F) {
	for _, seed := range images {
		f.Add(seed.image)
	}
	f.Fuzz(func(t *testing.T, image []byte) {
		if checkImage(image) != nil {
			return
		}
		switch {
		case bytes.HasPrefix(image, []byte("\x7fELF")):
			if machine := binary.LittleEndian.Uint16(image[18:]); image[5] == 1 && machine != 190 {
				t.Errorf("an ELF file for machine %d passed", machine)
			}
		case bytes.HasPrefix(image, []byte{0x50, 0xed, 0x55, 0xba}):
			// What the driver will read, in arithmetic that cannot overflow.
			end := float64(binary.LittleEndian.Uint16(image[6:])) + float64(binary.LittleEndian.Uint64(image[8:]))
			if end > float64(len(image)) {
				t.Errorf("a fatbin of %d bytes that claims %v passed", len(image), end)
			}
		default:
			if i := bytes.IndexByte(image, 0); i >= 0 && i != len(image)-1 {
				t.Errorf("text with a zero byte at %d of %d passed", i, len(image))
			}
		}
	})
}
