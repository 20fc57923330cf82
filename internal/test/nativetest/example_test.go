package nativetest_test

import (
	"fmt"

	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/nativetest"
)

// A queue whose marks stay under way until the test lets them be reached.
func ExampleQueue() {
	q := nativetest.NewQueue()
	q.Hold(true)
	fmt.Println("reached:", nativetest.Do(q.Queue, native.Reach, 0, 0, 0) == 0)
	q.Hold(false)
	fmt.Println("reached:", nativetest.Do(q.Queue, native.Reach, 0, 0, 0) == 0)
	// Output:
	// reached: false
	// reached: true
}
