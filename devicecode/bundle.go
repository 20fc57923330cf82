package devicecode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// Bundle has the images of a source for some architectures. "mscclgo compile" and
// [CompileBundle] make bundles, so that a program needs no compiler where it runs, no home
// and no cache. Its bytes can be a file for [LoadBundle], or embedded in the program:
//
//	//go:embed kernels.bundle
//	var kernels []byte
//
//	bundle, err := devicecode.OpenBundle(kernels)
//	...
//	module, err := bundle.Load(device)
//
// Images are code, which runs with the rights of the program and, on an emulated device, in
// its process: load only bundles from whom you would run a program. The checks of
// OpenBundle find accidents, not attacks.
//
// An image for emulated devices is for the processor and the C library of the machine that
// it was made on, or later ones.
type Bundle struct {
	name   string
	images []bundledImage // sorted by architecture
}

type bundledImage struct {
	arch  string
	image []byte
}

var bundleKind = [4]byte{'m', 'b', 'n', 'd'}

// The limits of a bundle.
const (
	bundleVersion = 1
	maxImages     = 64
	maxArch       = 16
	maxSourceName = 4096
)

// CompileBundle compiles a source for architectures, each once; see [Compile].
//
// Errors: as for [Compile]; ErrInvalid also if no architecture is given, or one twice.
func CompileBundle(ctx context.Context, archs []string, name string, source []byte, o Options) (*Bundle, error) {
	op := "devicecode: compile " + name + " into a bundle"
	if len(archs) == 0 || len(archs) > maxImages || len(name) > maxSourceName {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op,
			"%d architectures and a name of %d bytes: a bundle is for 1 to %d, and the name has at most %d", len(archs), len(name), maxImages, maxSourceName)
	}
	archs = slices.Clone(archs)
	slices.SortFunc(archs, compareArchs)
	for i, arch := range archs {
		if err := checkArch(arch); err != nil {
			return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%w", err)
		}
		if i > 0 && archs[i-1] == arch {
			return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the architecture %s is given twice", arch)
		}
	}
	b := &Bundle{name: name}
	for _, arch := range archs {
		image, err := Compile(ctx, arch, name, source, o)
		if err != nil {
			return nil, err
		}
		b.images = append(b.images, bundledImage{arch, image})
	}
	return b, nil
}

// OpenBundle returns the bundle of these bytes, which it keeps: they must not change.
//
// Errors: ErrInvalid if they are no bundle, or one that is cut short, altered or of a
// version that this build does not read.
func OpenBundle(data []byte) (*Bundle, error) {
	b, err := decodeBundle(data)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, fmt.Sprintf("devicecode: open a bundle of %d bytes", len(data)), "%w", err)
	}
	return b, nil
}

// LoadBundle loads the image for a device from a bundle's file. The caller closes the
// module. Read what [Bundle] says of trust.
//
// Errors: as for OpenBundle and [Bundle.Load]; ErrSystem if the file cannot be read;
// ErrInvalid if it is no regular file, or has more than 1 GiB.
func LoadBundle(dev *gpu.Device, file string) (*gpu.Module, error) {
	op := "devicecode: load the bundle " + file
	data, err := readBundle(file)
	if errors.Is(err, errNoBundle) {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%w", err)
	} else if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, op, "%w", err)
	}
	b, err := decodeBundle(data)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%w", err)
	}
	return b.Load(dev)
}

var errNoBundle = errors.New("it is not a regular file of at most 1 GiB")

// readBundle reads a file without waiting for a writer, if it is a pipe.
func readBundle(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, errNoBundle
	}
	var data bytes.Buffer
	data.Grow(int(info.Size()) + bytes.MinRead)
	if _, err := io.Copy(&data, io.LimitReader(f, maxFile)); err != nil {
		return nil, err
	}
	return data.Bytes(), nil
}

// Name returns the name of the source.
func (b *Bundle) Name() string { return b.name }

// Architectures returns the architectures that there are images for, "emu" first and the
// others by number.
func (b *Bundle) Architectures() []string {
	archs := make([]string, len(b.images))
	for i, image := range b.images {
		archs[i] = image.arch
	}
	return archs
}

// Image returns the image for an architecture, which must not be changed. An image for
// sm_90 also serves a later GPU of the same generation, such as sm_93 would be; of several
// the newest is chosen.
//
// Errors: ErrUnsupported, with the architectures that there are, if there is none.
func (b *Bundle) Image(arch string) ([]byte, error) {
	op := fmt.Sprintf("devicecode: find the image of %s for %s", b.name, arch)
	if err := checkArch(arch); err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%w", err)
	}
	for _, has := range slices.Backward(b.images) {
		if runsOn(has.arch, arch) {
			return has.image, nil
		}
	}
	return nil, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "the bundle has images for %s; compile it with -arch %s",
		strings.Join(b.Architectures(), ", "), strings.Join(append(b.Architectures(), arch), ","))
}

// Load loads the image for a device. The caller closes the module.
//
// Errors: ErrUnsupported if there is no image for the device; ErrInvalid if the device is
// nil; as for [gpu.Device.LoadModule].
func (b *Bundle) Load(dev *gpu.Device) (*gpu.Module, error) {
	if dev == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, "devicecode: load "+b.name, "the device is nil")
	}
	image, err := b.Image(dev.Info().Arch)
	if err != nil {
		return nil, err
	}
	return dev.LoadModule(image)
}

// Bytes returns the bundle as [OpenBundle] takes it.
func (b *Bundle) Bytes() []byte {
	size := 1 << 10
	for _, i := range b.images {
		size += len(i.image) + 64
	}
	w := wire.NewWriter(size)
	w.String(b.name)
	w.U32(uint32(len(b.images)))
	for _, i := range b.images {
		w.String(i.arch)
		w.Blob(i.image)
	}
	return wire.Seal(bundleKind, bundleVersion, w.Bytes())
}

func decodeBundle(data []byte) (*Bundle, error) {
	body, err := wire.Open(bundleKind, bundleVersion, data)
	if err != nil {
		return nil, fmt.Errorf("it is not a bundle that this build reads: %w", err)
	}
	r := wire.NewReader(body)
	b := &Bundle{name: r.String(maxSourceName)}
	n := r.U32()
	if n == 0 || n > maxImages {
		r.Fail(fmt.Errorf("it has %d images, not 1 to %d", n, maxImages))
	}
	for ; n > 0 && r.Err() == nil; n-- {
		i := bundledImage{arch: r.String(maxArch), image: r.Blob(maxFile)}
		if r.Err() != nil {
			break
		}
		if err := checkArch(i.arch); err != nil {
			r.Fail(err)
		} else if last := len(b.images) - 1; last >= 0 && compareArchs(b.images[last].arch, i.arch) >= 0 {
			r.Fail(fmt.Errorf("the images for %s and %s are out of order", b.images[last].arch, i.arch))
		}
		b.images = append(b.images, i)
	}
	if err := r.End(); err != nil {
		return nil, fmt.Errorf("the bundle is damaged: %w", err)
	}
	return b, nil
}

// archNumber returns 90 for "sm_90" and 0 for "emu", or -1.
func archNumber(arch string) int {
	if arch == ArchEmu {
		return 0
	}
	digits, ok := strings.CutPrefix(arch, "sm_")
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || n < 10 || n > 9999 || strconv.Itoa(n) != digits {
		return -1
	}
	return n
}

func checkArch(arch string) error {
	if archNumber(arch) < 0 {
		return fmt.Errorf("unknown architecture %q: want %q or an NVIDIA GPU's, such as \"sm_90\"", arch, ArchEmu)
	}
	return nil
}

func compareArchs(a, b string) int { return archNumber(a) - archNumber(b) }

// runsOn reports whether code for one architecture runs on another: on GPUs, of the same
// major version and not older ("CUDA C++ Programming Guide", "Binary Compatibility").
func runsOn(code, device string) bool {
	c, d := archNumber(code), archNumber(device)
	return c == d || c > 0 && c < d && c/10 == d/10
}
