package conntest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// faultEnv is the fault that TestDriver's driver has.
const faultEnv = "CONNTEST_FAULT"

// TestDriver tries the tests with a transport that only they have.
func TestDriver(t *testing.T) {
	fault := os.Getenv(faultEnv)
	if fault != "" {
		patience = 2 * time.Second
	}
	TestConnection(t, memoryRanks(fault))
}

// TestFaults checks that the tests notice a transport's faults: each fails the
// test that it is paired with.
func TestFaults(t *testing.T) {
	for _, c := range []struct{ fault, test string }{
		{"short", "Writes"},
		{"beside", "Writes"},
		{"refuse", "Writes"},
		{"swap", "OrderOfWrites"},
		{"swap", "Puts"},
		{"hasty", "LargePuts"},
		{"lie", "Marks"},
		{"lie", "Goroutines"},
		{"lie", "ContextsHeld"},
		{"lie", "CloseHeld"},
		{"borrow", "WriteBytes"},
		{"allocate", "Allocations"},
		{"stubborn", "ContextsHeld"},
		{"deaf", "DeadPeer"},
	} {
		t.Run(c.fault+"/"+c.test, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^TestDriver$/^"+c.test+"$", "-test.timeout=60s")
			cmd.Env = append(os.Environ(), faultEnv+"="+c.fault)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestDriver/"+c.test) {
				t.Errorf("it was not noticed: %v\n%s", err, out)
			}
		})
	}
}
