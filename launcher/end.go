package launcher

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// end is how a rank ended.
type end struct {
	rank int
	how  string // "exited with code 3", "was ended by SIGKILL"
	code int    // as a shell reports it: 128+n for signal n
}

// describe returns a process's status in words and as a shell's exit code.
func describe(status syscall.WaitStatus) (how string, code int) {
	if !status.Signaled() {
		return fmt.Sprintf("exited with code %d", status.ExitStatus()), status.ExitStatus()
	}
	how = "was ended by " + unix.SignalName(status.Signal())
	if status.CoreDump() {
		how += " (core dumped)"
	}
	return how, 128 + int(status.Signal())
}

// listEnds lists ranks by how they ended, as in
// "0-2,5 were ended by SIGTERM; 3 exited with code 1".
func listEnds(ends []end) string {
	ranks := map[string][]int{}
	var order []string
	for _, e := range ends {
		if ranks[e.how] == nil {
			order = append(order, e.how)
		}
		ranks[e.how] = append(ranks[e.how], e.rank)
	}
	for i, how := range order {
		verb := how
		if len(ranks[how]) > 1 {
			verb = strings.Replace(how, "was ", "were ", 1)
		}
		order[i] = ranges(ranks[how]) + " " + verb
	}
	return strings.Join(order, "; ")
}

// ranges formats numbers, sorted, as in "0-2,5".
func ranges(numbers []int) string {
	n := slices.Sorted(slices.Values(numbers))
	var parts []string
	for len(n) > 0 {
		last := 0
		for last+1 < len(n) && n[last+1] == n[last]+1 {
			last++
		}
		part := strconv.Itoa(n[0])
		if last > 0 {
			part += "-" + strconv.Itoa(n[last])
		}
		parts = append(parts, part)
		n = n[last+1:]
	}
	return strings.Join(parts, ",")
}
