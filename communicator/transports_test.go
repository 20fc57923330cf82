package communicator

import (
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/connection/ib"
)

// TestInfiniBandTimeout has InfiniBand wait longer than kernels do, whose waits have a verdict
// then, unless the user has set how long. "stopped, with data under way" of TestVerdictProcesses
// shows it over Ethernet; connection/ib keeps what it is given (TestTimeoutIsKept there).
func TestInfiniBandTimeout(t *testing.T) {
	for given, want := range map[time.Duration]time.Duration{0: 8 * time.Second, 3 * time.Second: 3 * time.Second} {
		c := &Communicator{options: Options{Timeout: 7 * time.Second, InfiniBand: ib.Options{Timeout: given}}}
		if got := c.infiniBandOptions().Timeout; got != want {
			t.Errorf("waits last 7s, the network's time-out is %v, and InfiniBand gets %v, want %v", given, got, want)
		}
	}
}
