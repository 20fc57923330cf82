package semaphore_test

import (
	"fmt"
	"log"
	"unsafe"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/semaphore"
)

// Both ends of a semaphore on one device. Kernels take the handles by value.
func ExampleNewDevice2Device() {
	device, err := gpu.Open("emu:0")
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()
	status, err := device.AllocHost(uint64(unsafe.Sizeof(layout.GroupStatus{}))) // of the group, where a wait that times out reports
	if err != nil {
		log.Fatal(err)
	}
	memory, err := device.Alloc(2 * semaphore.Device2DeviceBytes)
	if err != nil {
		log.Fatal(err)
	}
	var words [2]*gpu.Buffer
	for i := range words {
		if words[i], err = memory.Slice(uint64(i)*semaphore.Device2DeviceBytes, semaphore.Device2DeviceBytes); err != nil {
			log.Fatal(err)
		}
	}
	watch := devicecode.Watch{Status: status.Ptr(), Timeout: 1e9}
	a, err := semaphore.NewDevice2Device(words[0], words[1], watch)
	if err != nil {
		log.Fatal(err)
	}
	b, err := semaphore.NewDevice2Device(words[1], words[0], watch)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the ends differ:", a.Handle() != b.Handle()) // a signals where b waits
	// Output: the ends differ: true
}
