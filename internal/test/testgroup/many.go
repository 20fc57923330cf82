package testgroup

import (
	"os"
	"strconv"
	"testing"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// ManyEnv is the variable for how many ranks the tests of large groups have: more than handles
// hold by themselves, and devicecode.MaxRanks at most.
const ManyEnv = "MSCCLGO_TEST_RANKS"

// Many returns how many ranks a test of a large group has. By default they are few enough for
// every run of all tests. It skips the test on GPUs.
func Many(t testing.TB) int {
	t.Helper()
	if testdev.CUDA() {
		t.Skip("so many ranks that wait for each other do not fit on GPUs")
	}
	text := os.Getenv(ManyEnv)
	if text == "" {
		const ranks = layout.RanksByValue + 8
		t.Logf("%d ranks; %s=%d has as many as there can be", ranks, ManyEnv, devicecode.MaxRanks)
		return ranks
	}
	ranks, err := strconv.Atoi(text)
	if err != nil || ranks <= layout.RanksByValue || ranks > devicecode.MaxRanks {
		t.Fatalf("%s is %q, not a number from %d to %d", ManyEnv, text, layout.RanksByValue+1, devicecode.MaxRanks)
	}
	return ranks
}
