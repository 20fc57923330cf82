package gpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"unsafe"
)

// pack writes a launch argument into the bytes of its parameter. The common types are
// handled without reflection.
func pack(dst []byte, arg any, dev *Device) error {
	switch v := arg.(type) {
	case *Buffer:
		if v == nil {
			return put64(dst, 0, "a nil buffer")
		}
		if err := v.usable("use"); err != nil {
			return err
		}
		if !dev.reaches(v) {
			return fmt.Errorf("the buffer belongs to %v, not to this Device; Device.Access makes it usable here", v.dev)
		}
		return put64(dst, uint64(v.ptr), "a buffer's address")
	case Ptr:
		return put64(dst, uint64(v), "an address")
	case uint64:
		return put64(dst, v, "a uint64")
	case int64:
		return put64(dst, uint64(v), "an int64")
	case uint32:
		return put32(dst, v, "a uint32")
	case int32:
		return put32(dst, uint32(v), "an int32")
	case float32:
		return put32(dst, math.Float32bits(v), "a float32")
	case float64:
		return put64(dst, math.Float64bits(v), "a float64")
	case int:
		return putInt(dst, v)
	case uint:
		return putUint(dst, v)
	}
	return packValue(dst, arg, dev)
}

func put64(dst []byte, v uint64, what string) error {
	if len(dst) != 8 {
		return wrongSize(len(dst), what, 8)
	}
	binary.NativeEndian.PutUint64(dst, v)
	return nil
}

func put32(dst []byte, v uint32, what string) error {
	if len(dst) != 4 {
		return wrongSize(len(dst), what, 4)
	}
	binary.NativeEndian.PutUint32(dst, v)
	return nil
}

func wrongSize(want int, what string, has int) error {
	return fmt.Errorf("the parameter has %d bytes, and %s has %d", want, what, has)
}

// putInt writes a Go int into a parameter of 1, 2, 4 or 8 bytes. The parameter may be
// signed or unsigned, so the values of both fit.
func putInt(dst []byte, v int) error {
	if v >= 0 {
		return putUint(dst, uint(v))
	}
	if bits := 8 * len(dst); bits < 64 && v < -1<<(bits-1) {
		return tooLarge(dst, v)
	}
	return putBytes(dst, uint64(v), "an int")
}

// putUint writes a Go uint into a parameter of 1, 2, 4 or 8 bytes.
func putUint(dst []byte, v uint) error {
	if bits := 8 * len(dst); bits < 64 && v>>bits != 0 {
		return tooLarge(dst, v)
	}
	return putBytes(dst, uint64(v), "an integer")
}

func tooLarge(dst []byte, v any) error {
	return fmt.Errorf("the parameter has %d bytes, and %v does not fit", len(dst), v)
}

func putBytes(dst []byte, v uint64, what string) error {
	switch len(dst) {
	case 1:
		dst[0] = byte(v)
	case 2:
		binary.NativeEndian.PutUint16(dst, uint16(v))
	case 4:
		binary.NativeEndian.PutUint32(dst, uint32(v))
	case 8:
		binary.NativeEndian.PutUint64(dst, v)
	default:
		return wrongSize(len(dst), what, 8)
	}
	return nil
}

// packValue writes a struct, an array or a named basic type, which C lays out alike.
func packValue(dst []byte, arg any, dev *Device) error {
	v := reflect.ValueOf(arg)
	if !v.IsValid() {
		return fmt.Errorf("nil has no size; pass gpu.Ptr(0) for a null pointer")
	}
	t := v.Type()
	if t.Kind() == reflect.Slice {
		return fmt.Errorf("a %v is in host memory; pass an array by value, or upload it and pass the buffer", t)
	}
	if dev.holdsPointers(t) {
		return fmt.Errorf("%v holds Go pointers, which a device cannot follow; %s", t, instead(t))
	}
	if int(t.Size()) != len(dst) {
		return wrongSize(len(dst), t.String(), int(t.Size()))
	}
	if len(dst) > 0 {
		reflect.NewAt(t, unsafe.Pointer(&dst[0])).Elem().Set(v)
	}
	return nil
}

// instead says what a kernel takes in place of a value of the type, which holds Go pointers.
func instead(t reflect.Type) string {
	method, ok := t.MethodByName("Set") // by constants, so that the linker keeps no other methods
	if !ok {
		method, ok = t.MethodByName("Handle")
	}
	if !ok {
		method, ok = t.MethodByName("Fifo")
	}
	if ok && method.Type.NumIn() == 1 && method.Type.NumOut() > 0 && !hasPointers(method.Type.Out(0)) {
		return "pass what its " + method.Name + "() returns"
	}
	return "use the Ptr of buffers in structs"
}
