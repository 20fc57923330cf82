package gpu

import (
	"errors"
	"strconv"
	"strings"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/gpu/internal/cuda"
	"github.com/mscclgo/mscclgo/gpu/internal/emu"
)

// Info describes a device.
type Info = backend.Info

// The prefixes of device names.
const (
	cudaPrefix = "cuda"
	emuPrefix  = "emu"
)

// List describes the devices of this machine: NVIDIA GPUs first, then the
// emulated ones. A machine without an NVIDIA driver has emulated devices only,
// which is no error.
func List() ([]Info, error) {
	gpus, err := cuda.Driver().List()
	if err != nil && !errors.Is(err, mscclgo.ErrUnsupported) {
		return nil, err
	}
	emulated, err := emu.Driver().List()
	if err != nil {
		return nil, err
	}
	return append(gpus, emulated...), nil
}

// Open opens a device by name: "cuda:N" for the NVIDIA GPU N as the driver
// counts them, "emu:N" for an emulated one, "auto" for the first of [List].
// "cuda", "emu" alone mean number 0.
//
// Opening one device several times gives independent Devices, so that ranks of
// one process can share a GPU; memory of one is reachable from the others.
//
// Errors: ErrInvalid for a name of another form or a number that is not there,
// ErrUnsupported where there is no driver.
func Open(name string) (*Device, error) {
	op := "gpu: open " + strconv.Quote(name)
	if name == "auto" {
		all, err := List()
		if err != nil {
			return nil, err
		}
		if len(all) == 0 {
			return nil, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "this machine has no NVIDIA GPU, and emulated devices are switched off")
		}
		name = all[0].Name
	}
	prefix, number, given := strings.Cut(name, ":")
	ordinal := 0
	if given {
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%q is not a device number", number)
		}
		ordinal = int(n)
	}
	var driver backend.Driver
	switch prefix {
	case cudaPrefix:
		driver = cuda.Driver()
	case emuPrefix:
		driver = emu.Driver()
	default:
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, `a device is named "cuda:N", "emu:N" or "auto"`)
	}
	b, err := driver.Open(ordinal)
	if err != nil {
		return nil, err
	}
	return newDevice(b), nil
}

// Assign names the device for one of several ranks of this machine, which take
// its devices in turn: kind is "cuda", "emu", or "auto" for NVIDIA GPUs where
// there are any and emulated devices where not. A kind that names one device,
// such as "cuda:0", is given back as it is.
//
// Errors: ErrInvalid for another kind, ErrUnsupported where there is no device
// of the kind, saying why.
func Assign(kind string, localRank int) (string, error) {
	if strings.Contains(kind, ":") {
		return kind, nil
	}
	const op = "gpu: choose a device"
	if localRank < 0 {
		return "", mscclgo.Errorf(mscclgo.ErrInvalid, op, "%d is no rank of a machine", localRank)
	}
	var devices []Info
	var err error
	switch kind {
	case "auto":
		if devices, err = cuda.Driver().List(); errors.Is(err, mscclgo.ErrUnsupported) {
			devices, err = emu.Driver().List()
		}
	case cudaPrefix:
		devices, err = cuda.Driver().List()
	case emuPrefix:
		devices, err = emu.Driver().List()
	default:
		return "", mscclgo.Errorf(mscclgo.ErrInvalid, op, `%q is none of "auto", "cuda", "emu" and a device's name such as "cuda:0"`, kind)
	}
	if err != nil {
		return "", err
	}
	if len(devices) == 0 {
		return "", mscclgo.Errorf(mscclgo.ErrUnsupported, op, "this machine has no device of kind %q", kind)
	}
	return devices[localRank%len(devices)].Name, nil
}
