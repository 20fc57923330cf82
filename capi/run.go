package main

// #include "process.h"
import "C"

import (
	"context"
	"os"
	"unsafe"

	"github.com/mscclgo/mscclgo/launcher"
)

//export capi_run
func capi_run(ranks C.int, command **C.char, signals C.int, code *C.int) C.mscclgo_status {
	const op = "run ranks"
	return call(func() error {
		if err := isNull(op, unsafe.Pointer(command), unsafe.Pointer(code)); err != nil {
			return err
		}
		*code = 1
		argv := texts(command)
		if len(argv) == 0 {
			return invalid(op, "the command has no program")
		}
		readEnvironment()
		numbers, stop, err := readSignals(int(signals))
		if err != nil {
			return err
		}
		defer stop()
		result, err := launcher.Run(context.Background(), launcher.Options{
			Ranks:   int(ranks),
			Program: argv[0],
			Args:    argv[1:],
			Stdout:  os.Stdout,
			Stderr:  os.Stderr,
			Logger:  logger(),
			Signals: numbers,
		})
		*code = C.int(result)
		return err
	})
}
