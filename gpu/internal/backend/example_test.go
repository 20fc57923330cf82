package backend_test

import (
	"fmt"
	"log"

	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/gpu/internal/emu"
)

// Package gpu uses a backend like this, after it has checked the arguments.
func Example() {
	var driver backend.Driver = emu.Driver()
	device, err := driver.Open(0)
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()
	memory, err := device.Alloc(5)
	if err != nil {
		log.Fatal(err)
	}
	defer memory.Free()
	if err := device.CopyFromHost(memory.Ptr(), []byte("hello")); err != nil {
		log.Fatal(err)
	}
	back := make([]byte, 5)
	if err := device.CopyToHost(back, memory.Ptr()); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", back)
	// Output: hello
}
