package launcher

import (
	"strconv"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// rankEnv returns the variables that make a process a rank, which sends its reports to
// a socket of that name. All ranks of a run are on this machine.
func rankEnv(rank, ranks int, id, reports string) []string {
	r, n := strconv.Itoa(rank), strconv.Itoa(ranks)
	return []string{
		bootstrap.EnvID + "=" + id,
		watch.Env + "=" + reports,
		"RANK=" + r,
		"WORLD_SIZE=" + n,
		"LOCAL_RANK=" + r,
		"LOCAL_WORLD_SIZE=" + n,
	}
}
