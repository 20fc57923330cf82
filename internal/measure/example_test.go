package measure_test

import (
	"bytes"
	"context"
	"fmt"
	"log"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/elements"
	"github.com/mscclgo/mscclgo/internal/measure"
)

// copying is an operation of one rank: it copies in to out.
type copying struct {
	typ     elements.Type
	in, out *gpu.Buffer
}

func (c copying) Prepare(seed uint64) error {
	if err := gpu.CopyIn(c.out, bytes.Repeat([]byte{0xff}, int(c.out.Size()))); err != nil {
		return err
	}
	data := make([]byte, c.in.Size())
	c.typ.Fill(data, seed)
	return gpu.CopyIn(c.in, data)
}

func (c copying) Launch(s *gpu.Stream) error { return s.Copy(c.out, 0, c.in, 0, c.in.Size()) }

func (c copying) Wrong(seed uint64) (int, error) {
	data := make([]byte, c.out.Size())
	err := gpu.CopyOut(data, c.out)
	return c.typ.Wrong(data, seed), err
}

func ExampleRun() {
	ctx := context.Background()
	rendezvous := must(bootstrap.NewRendezvous("127.0.0.1:0", nil))
	defer rendezvous.Close()
	boot := must(bootstrap.Connect(ctx, bootstrap.Options{Size: 1, ID: rendezvous.ID()}))
	defer boot.Close()
	device := must(gpu.Open("emu:0"))
	defer device.Close()
	comm := must(communicator.New(ctx, boot, device, communicator.Options{}))
	defer comm.Close()

	op := copying{must(elements.ParseType("f32")), must(device.Alloc(4096)), must(device.Alloc(4096))}
	took, wrong, err := measure.Run(ctx, comm, must(device.NewStream()), op, 1, 5)
	fmt.Println(took > 0, wrong, err)
	// Output: true 0 <nil>
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
