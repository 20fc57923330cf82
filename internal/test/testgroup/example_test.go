package testgroup_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// stage stands for the *testing.T of a test.
type stage struct {
	testing.TB
	cleanups []func()
}

func (*stage) Helper()                   {}
func (s *stage) Cleanup(f func())        { s.cleanups = append(s.cleanups, f) }
func (*stage) Fatal(args ...any)         { log.Fatal(args...) }
func (*stage) Fatalf(f string, a ...any) { log.Fatalf(f, a...) }
func (*stage) Errorf(f string, a ...any) { log.Fatalf(f, a...) }
func (s *stage) end() {
	for _, f := range s.cleanups {
		f()
	}
}

// A test hands its *testing.T to Run.
func ExampleRun() {
	t := new(stage)
	defer t.end()
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, c *communicator.Communicator) error {
		greeting, err := c.Broadcast(ctx, 0, []byte("hello"))
		if err == nil && c.Rank() == 1 {
			fmt.Printf("rank 1 of %d got %q\n", c.Size(), greeting)
		}
		return err
	})
	// Output: rank 1 of 2 got "hello"
}
