package capi

// #include "process.h"
import "C"

import (
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"unsafe"
)

// access is what a call does with memory of the caller's.
type access int

const (
	reads access = iota
	writes
)

// hostBytes returns n bytes of the caller's memory, which a call may access. NULL has none.
func hostBytes(op string, at address, n uint64, how access) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	if at == 0 {
		return nil, invalid(op, "a pointer is NULL")
	}
	if n > 1<<62 || uint64(at)+n < uint64(at) {
		return nil, invalid(op, "there is no memory of %d bytes at %#x", n, uint64(at))
	}
	data := unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), int(n))
	return data, touch(op, data, how)
}

// host is hostBytes, and ends the call where there are none.
func (c *call) host(at address, n uint64, how access) []byte {
	data, err := hostBytes(c.op, at, n, how)
	c.check(err)
	return data
}

// array returns n elements of an array of the caller, which a call may read. NULL has none.
func array[T any](op string, at *T, n int) ([]T, error) {
	if _, err := hostBytes(op, addressOf(at), uint64(n)*uint64(unsafe.Sizeof(*at)), reads); err != nil {
		return nil, err
	}
	return unsafe.Slice(at, n), nil
}

// addressOf returns a pointer of the caller's as a number.
func addressOf[T any](at *T) address { return address(uintptr(unsafe.Pointer(at))) }

var pageBytes = os.Getpagesize()

// touch accesses each page of memory, whose content stays. A fault, as in memory that is protected or
// beyond the end of its file, is an error here: later, in a copy or in the driver, it would end the process.
func touch(op string, data []byte, how access) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case runtime.Error:
			verb := [...]string{reads: "read", writes: "written"}[how]
			err = invalid(op, "the %d bytes at %p cannot be %s", len(data), unsafe.SliceData(data), verb)
		default:
			panic(r)
		}
	}()
	for i := 0; i < len(data); {
		at := unsafe.Pointer(&data[i])
		// An atomic access of the word around it loses no bytes that another thread writes.
		word := (*uint32)(unsafe.Add(at, -int(uintptr(at)%4)))
		if how == writes {
			atomic.AddUint32(word, 0)
		} else {
			atomic.LoadUint32(word)
		}
		i += pageBytes - int(uintptr(at)%uintptr(pageBytes))
	}
	return nil
}
