//go:build mscclgo_library

package main

import "C"

import (
	"os"
	"unsafe"

	_ "github.com/mscclgo/mscclgo/capi"
)

// mscclgo_command is the command of the C library, which scripts/lib builds of this package: whoever
// has the library has the command with it, for a program of one line.
//
//export mscclgo_command
func mscclgo_command(count C.int, words **C.char) C.int {
	var args []string
	for _, word := range unsafe.Slice(words, count)[1:] {
		args = append(args, C.GoString(word))
	}
	return C.int(dispatch(args, os.Stdin, os.Stdout, os.Stderr))
}
