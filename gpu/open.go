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

// The kinds of devices, which their names begin with.
const (
	kindCUDA = "cuda"
	kindEmu  = "emu"
	kindAuto = "auto" // the first kind that there are devices of
)

// devices describes the devices of a kind, in ordinal order.
func devices(kind string) ([]Info, error) {
	switch kind {
	case kindCUDA:
		return list(cuda.Driver())
	case kindEmu:
		return list(emu.Driver())
	}
	found, err := list(cuda.Driver())
	if errors.Is(err, mscclgo.ErrUnsupported) {
		return list(emu.Driver())
	}
	return found, err
}

func list(d backend.Driver) ([]Info, error) {
	found, err := d.List()
	infos := make([]Info, len(found))
	for i, info := range found {
		infos[i] = Info(info)
	}
	return infos, err
}

// Open opens a device by name: "cuda:N" for NVIDIA GPU N in the driver's order,
// "emu:N" for an emulated device, "auto" for the first of [List]. "cuda" and "emu"
// mean number 0.
//
// A device can be opened several times. The Devices are independent, so ranks of one
// process can share a GPU; memory of one is reachable from the others.
//
// Errors: ErrInvalid for any other name, or if there is no device of that number;
// ErrUnsupported if there is no driver; ErrSystem, for "auto" too, if there is one and it does
// not work.
func Open(name string) (*Device, error) {
	op := "gpu: open " + strconv.Quote(name)
	if name == kindAuto {
		first, err := Assign(kindAuto, 0)
		if err != nil {
			return nil, err
		}
		name = first
	}
	kind, number, given := strings.Cut(name, ":")
	ordinal := 0
	if given {
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%q is not a device number", number)
		}
		ordinal = int(n)
	}
	var driver backend.Driver
	switch kind {
	case kindCUDA:
		driver = cuda.Driver()
	case kindEmu:
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

// Assign returns the name of the device for a rank of this machine. The local ranks
// take the devices of the kind in turn: "cuda", "emu", or "auto" for NVIDIA GPUs if
// there are any and emulated devices if there is no driver or GPU. A kind that is the name of one device,
// such as "cuda:0", is returned as it is.
//
// Errors: ErrInvalid for any other kind or a negative rank; ErrUnsupported, with the
// reason, if there is no device of the kind; ErrSystem, with the driver's text and what to
// do, if there is a driver and it does not work.
func Assign(kind string, localRank int) (string, error) {
	if strings.Contains(kind, ":") {
		return kind, nil
	}
	const op = "gpu: assign a device"
	if localRank < 0 {
		return "", mscclgo.Errorf(mscclgo.ErrInvalid, op, "local rank %d is negative", localRank)
	}
	if kind != kindAuto && kind != kindCUDA && kind != kindEmu {
		return "", mscclgo.Errorf(mscclgo.ErrInvalid, op, `%q is not "auto", "cuda", "emu" or the name of a device such as "cuda:0"`, kind)
	}
	found, err := devices(kind)
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", mscclgo.Errorf(mscclgo.ErrUnsupported, op, "this machine has no device of kind %q", kind)
	}
	return found[localRank%len(found)].Name, nil
}
