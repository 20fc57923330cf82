package gpu

import (
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/mscclgo/mscclgo"
)

// CopyIn copies values from the host to the start of b and returns when that is
// done. It is ordered behind nothing that streams do. T must hold no Go
// pointers.
//
// Errors: ErrInvalid when src does not fit or T holds pointers.
func CopyIn[T any](b *Buffer, src []T) error {
	data, err := raw("gpu: copy in", b, src)
	if err != nil || len(data) == 0 {
		return err
	}
	if host := b.Bytes(); host != nil {
		copy(host, data)
		return nil
	}
	return b.dev.b.CopyFromHost(uint64(b.ptr), data)
}

// CopyOut copies values from the start of b to the host and returns when that
// is done. It is ordered behind nothing that streams do: synchronise first. T
// must hold no Go pointers.
//
// Errors: ErrInvalid when b holds fewer values than dst or T holds pointers.
func CopyOut[T any](dst []T, b *Buffer) error {
	data, err := raw("gpu: copy out", b, dst)
	if err != nil || len(data) == 0 {
		return err
	}
	if host := b.Bytes(); host != nil {
		copy(data, host)
		return nil
	}
	return b.dev.b.CopyToHost(data, uint64(b.ptr))
}

// Upload gives new device memory that holds the values, the caller's to close.
//
// Errors: those of [Device.Alloc], for no values too, and of [CopyIn].
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

// raw gives the bytes of a slice that fits b.
func raw[T any](op string, b *Buffer, s []T) ([]byte, error) {
	t := reflect.TypeFor[T]()
	if hasPointers(t) {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%v holds Go pointers, which mean nothing on a device", t)
	}
	n := uint64(len(s)) * uint64(t.Size())
	if err := b.check(fmt.Sprintf("%s %d values of %v", op, len(s), t), 0, n); err != nil || n == 0 {
		return nil, err
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), n), nil
}

// hasPointers says whether values of the type hold Go pointers.
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
