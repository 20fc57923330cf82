package launcher

import (
	"strconv"

	"github.com/mscclgo/mscclgo/bootstrap"
)

// rankEnv returns the variables that make a process a rank. All ranks of a run are
// on this machine.
func rankEnv(rank, ranks int, id string) []string {
	r, n := strconv.Itoa(rank), strconv.Itoa(ranks)
	return []string{
		bootstrap.EnvID + "=" + id,
		"RANK=" + r,
		"WORLD_SIZE=" + n,
		"LOCAL_RANK=" + r,
		"LOCAL_WORLD_SIZE=" + n,
	}
}
