package native

import "time"

// Busy is what a rank's host does for a device, of which it tells other ranks.
type Busy struct {
	What     string    // such as "compiles sum.cu"
	Since    time.Time // when it began
	Compiles bool      // for which the deadlines of other ranks' waits are put off
}

var (
	// BeginBusy notes that the program does something for a *gpu.Device that may last, until end is called.
	BeginBusy func(device any, what string, compiles bool) (end func())
	// BusyOf returns what it does for a *gpu.Device, the oldest first.
	BusyOf func(device any) []Busy
)
