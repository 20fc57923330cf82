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

// attempts is how often a fault may go unnoticed. Whether one shows depends on when
// threads run, and on a busy machine it hides in up to one run of ten.
const attempts = 20

// TestFaults checks that the tests notice a transport's faults: each fails the
// test that it is paired with, with a text that says what is wrong.
func TestFaults(t *testing.T) {
	for _, c := range []struct{ fault, test, says string }{
		{"short", "Writes", "has not arrived"},
		{"beside", "Writes", "outside the range"},
		{"alike", "OtherRegistries", "of another registry of the peer is wrong"},
		{"refuse", "Writes", "system error: no"},
		{"lose", "EachArrives", "is lost"},
		{"swap", "EachArrives", "before the write"},
		{"swap", "OrderOfWrites", "not the last write's"},
		{"swap", "Puts", "is announced"},
		{"hasty", "EachArrives", "before the write"},
		{"hasty", "LargePuts", "is announced"},
		{"tear", "Words", "torn"},
		{"narrow", "Words", "torn, or falls"},
		{"lie", "Flush", "a flush returned, and"},
		{"lie", "Marks", "a mark is reached, and"},
		{"lie", "Goroutines", "after a flush"},
		{"lie", "ContextsHeld", "a mark behind what is held"},
		{"lie", "CloseHeld", "a call of Close returned before that was done"},
		{"borrow", "WriteBytes", "read after it had returned"},
		{"borrow", "WriteBytesFull", "read after WriteBytes had returned"},
		{"allocate", "Allocations", "allocate"},
		{"short", "Reads", "has not arrived"},
		{"beside", "Reads", "outside the range"},
		{"peek", "OrderOfReads", "less than the write before it"},
		{"late", "OrderOfReads", "found the write behind it"},
		{"late", "ReadThenUpdate", "an update came before the read"},
		{"late", "MarksOfReads", "is not here"},
		{"lie", "ReadsOfMany", "after a flush"},
		{"swap", "ReadsBothWays", "sent other bytes"},
		{"tear", "Stores", "torn"},
		{"narrow", "Stores", "torn"},
		{"swap", "OrderOfStores", "writes and stores"},
		{"hasty", "OrderOfStores", "writes and stores"},
		{"late", "StoreThenUpdate", "the word is still"},
		{"deaf", "StoresToDeadPeer", "goes on"},
		{"split", "Adds", "the sum"},
		{"lose", "Adds", "the sum"},
		{"narrow", "Adds", "the sum"},
		{"lie", "Adds", "the sum"},
		{"split", "Exchanges", "what was exchanged"},
		{"lie", "Exchanges", "what was exchanged"},
		{"swap", "OrderOfAtomics", "atomic operations in turn"},
		{"hasty", "OrderOfAtomics", "found"},
		{"peek", "OrderOfAtomics", "found"},
		{"tardy", "OrderOfAtomics", "was sent on as"},
		{"late", "AddThenUpdate", "the sum is still"},
		{"eager", "ExchangeTurns", "an exchange in a turn waits"},
		{"shy", "ExchangeTurns", "no turn to exchange"},
		{"deaf", "AtomicsOfDeadPeer", "goes on"},
		{"eager", "ReadTurns", "a read in a turn waits"},
		{"shy", "ReadTurns", "no turn to read"},
		{"deaf", "ReadsOfDeadPeer", "goes on"},
		{"eager", "Turns", "a call in a turn waits"},
		{"shy", "Turns", "no turn can be had"},
		{"patient", "Turns", "waits for a call"},
		{"stubborn", "ContextsHeld", "though its context has ended"},
		{"patient", "ContextsHeld", "Done waits"},
		{"stuck", "Close", "Close does not return"},
		{"deaf", "DeadPeer", "goes on"},
		{"mute", "DeadPeerHeld", "a flush that waits as the peer dies goes on"},
	} {
		t.Run(c.fault+"/"+c.test, func(t *testing.T) {
			t.Parallel()
			fails := "--- FAIL: TestDriver/" + c.test
			var out []byte
			for range attempts {
				cmd := exec.Command(os.Args[0], "-test.run=^TestDriver$/^"+c.test+"$", "-test.timeout=60s")
				cmd.Env = append(os.Environ(), faultEnv+"="+c.fault)
				out, _ = cmd.CombinedOutput()
				if strings.Contains(string(out), fails) && strings.Contains(string(out), c.says) {
					return
				}
			}
			t.Errorf("no run of %d says %q and %q; the last one:\n%s", attempts, fails, c.says, out)
		})
	}
}
