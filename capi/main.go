// Package capi is the C library libmscclgo.so, built by "make lib": what mscclgo.h declares, over
// the packages of this module.
//
// mscclgo.h is the one table of the API. A function of it is one of exports.c and one of exports.go, which are
// generated, and calls a method of call: mscclgo_stream_copy is streamCopy.
// Handles are numbers of a table; what they stand for, and in which order it is closed, is
// in handles.go.
package capi

// #cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -fvisibility=hidden
// #cgo LDFLAGS: -ldl -lpthread
// #include "process.h"
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/mscclgo/mscclgo"
)

//go:generate go run ./internal/generate

// init runs after package os's, which raises the limit of open files.
func init() { C.capi_keep_limit() }

// fail keeps an error for mscclgo_error_text and its like, and returns its kind. The calling
// thread is the call's own: cgo holds the goroutine on it.
func fail(err error) C.mscclgo_status {
	rank, peer := mscclgo.NoRank, mscclgo.NoRank
	var e *mscclgo.Error
	if errors.As(err, &e) {
		rank, peer = e.Rank, e.Peer
	}
	C.capi_fail(C.CString(sentence(err)), C.int(rank), C.int(peer))
	return C.mscclgo_status(mscclgo.KindOf(err))
}

// sentence returns the text of an error in one line, where errors.Join has a line for each error.
func sentence(err error) string {
	var texts []string
	for _, e := range joined(err) {
		if text := e.Error(); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, "; and ")
}

// joined returns the errors that errors.Join has joined, or the error.
func joined(err error) (all []error) {
	several, ok := err.(interface{ Unwrap() []error })
	if !ok || err.Error() != errors.Join(several.Unwrap()...).Error() { // it has a text of its own
		return []error{err}
	}
	for _, e := range several.Unwrap() {
		all = append(all, joined(e)...)
	}
	return all
}

func (c *call) checkVersion(header uint32) error {
	const library = C.MSCCLGO_VERSION
	if header>>8 != library>>8 {
		return mscclgo.Errorf(mscclgo.ErrUnsupported, "mscclgo: check versions",
			"the program was made for version %d.%d.%d, and the library is %d.%d.%d: install both in one version",
			header>>16, header>>8&0xff, header&0xff, C.MSCCLGO_VERSION_MAJOR, C.MSCCLGO_VERSION_MINOR, C.MSCCLGO_VERSION_PATCH)
	}
	return nil
}

// isNull returns an error if a pointer that a call needs is NULL.
func isNull(op string, pointers ...unsafe.Pointer) error {
	for _, p := range pointers {
		if p == nil {
			return invalid(op, "a pointer is NULL")
		}
	}
	return nil
}

func invalid(op, format string, args ...any) error {
	return mscclgo.Errorf(mscclgo.ErrInvalid, "mscclgo: "+op, "%s", fmt.Sprintf(format, args...))
}

// text returns a string of C, where NULL is "".
func text(s *C.char) string {
	if s == nil {
		return ""
	}
	return C.GoString(s)
}

// texts returns the strings of an array that ends with NULL.
func texts(array **C.char) (all []string) {
	for array != nil && *array != nil {
		all = append(all, C.GoString(*array))
		array = (**C.char)(unsafe.Add(unsafe.Pointer(array), unsafe.Sizeof(array)))
	}
	return all
}
