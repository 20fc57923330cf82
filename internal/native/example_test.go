package native_test

import (
	"fmt"

	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/nativetest"
)

// A thread in C passes a gate to use what its owner may close.
func ExampleGate() {
	gate := native.NewGate()
	leave, ok := nativetest.EnterGate(gate) // what C does with native_gate_enter
	fmt.Println("open:", ok)
	leave()
	gate.Close()
	_, ok = nativetest.EnterGate(gate)
	fmt.Println("open:", ok)
	// Output:
	// open: true
	// open: false
}
