package gpu

import (
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/race"
)

// CopyIn copies src to the start of b and returns when the copy is done. It is not
// ordered with the work of streams. T must not hold Go pointers.
//
// Errors: ErrInvalid if src does not fit or T holds pointers.
func CopyIn[T any](b *Buffer, src []T) error {
	data, err := raw("gpu: copy in", b, src)
	if err != nil || len(data) == 0 {
		return err
	}
	if host := b.Bytes(); host != nil {
		race.PinnedAccess(b.dev.String(), uint64(b.ptr), uint64(len(data)), true)
		copy(host, data)
		return nil
	}
	return b.dev.b.CopyFromHost(uint64(b.ptr), data)
}

// CopyOut fills dst from the start of b and returns when the copy is done. It is not
// ordered with the work of streams: synchronize them first. T must not hold Go
// pointers.
//
// Errors: ErrInvalid if b has fewer bytes than dst or T holds pointers.
func CopyOut[T any](dst []T, b *Buffer) error {
	data, err := raw("gpu: copy out", b, dst)
	if err != nil || len(data) == 0 {
		return err
	}
	if host := b.Bytes(); host != nil {
		race.PinnedAccess(b.dev.String(), uint64(b.ptr), uint64(len(data)), false)
		copy(data, host)
		return nil
	}
	return b.dev.b.CopyToHost(data, uint64(b.ptr))
}

// Upload allocates device memory and copies src to it. The caller closes the buffer.
//
// Errors: as for [Device.Alloc], also if src is empty, and of [CopyIn].
func Upload[T any](d *Device, src []T) (*Buffer, error) {
	var zero T
	b, err := d.Alloc(uint64(len(src)) * uint64(unsafe.Sizeof(zero)))
	if err != nil {
		return nil, err
	}
	if err := CopyIn(b, src); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// raw returns the bytes of a slice that fits b.
func raw[T any](op string, b *Buffer, s []T) ([]byte, error) {
	t := reflect.TypeFor[T]()
	if hasPointers(t) {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%v holds Go pointers, which a device cannot follow", t)
	}
	n := uint64(len(s)) * uint64(t.Size())
	if err := b.check(fmt.Sprintf("%s %d values of %v", op, len(s), t), 0, n); err != nil || n == 0 {
		return nil, err
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), n), nil
}

// hasPointers reports whether values of the type hold Go pointers.
func hasPointers(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr,
		reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return false
	case reflect.Array:
		return t.Len() > 0 && hasPointers(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if hasPointers(t.Field(i).Type) {
				return true
			}
		}
		return false
	}
	return true
}
