package launcher

import (
	"net"
	"os"
	"strconv"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// rankEnv returns the variables that make a process a rank. reports is the name of the socket
// to which it sends its reports. All ranks of a run are on this machine.
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

// masterEnv returns where the ranks may meet that PyTorch's env:// starts: a port that is free now.
// What the caller has set of its own stays.
func masterEnv() []string {
	if os.Getenv("MASTER_ADDR") != "" || os.Getenv("MASTER_PORT") != "" {
		return nil
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil // such a program says that they are missing
	}
	defer l.Close()
	return []string{"MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + strconv.Itoa(l.Addr().(*net.TCPAddr).Port)}
}
