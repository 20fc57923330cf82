package bootstrap

import (
	"fmt"
	"strconv"
	"strings"
)

// slurmFirstNode returns rank 0's address under srun, which numbers tasks from the
// first node of the step.
func slurmFirstNode(v vars, _, _ int) (string, error) {
	for _, name := range []string{"SLURM_STEP_NODELIST", "SLURM_NODELIST"} {
		if v.has(name) {
			host, err := firstHost(v.get(name))
			if err != nil {
				return "", fmt.Errorf("%s=%q: %w", name, v.get(name), err)
			}
			return host, nil
		}
	}
	return "", fmt.Errorf("none of MASTER_ADDR, SLURM_STEP_NODELIST and SLURM_NODELIST is set: one is needed to find rank 0")
}

// firstHost returns the first name of a Slurm host list, as scontrol(1) writes
// it: "gpu[003-007,12],login1" starts with gpu003, "rack[1-2]node[3-4]" with rack1node3.
func firstHost(list string) (string, error) {
	host := ""
	for rest := list; ; {
		end := strings.IndexAny(rest, ",[")
		if end < 0 {
			host += rest
			break
		}
		host += rest[:end]
		if rest[end] == ',' {
			break
		}
		inner, after, ok := strings.Cut(rest[end+1:], "]")
		if !ok {
			return "", fmt.Errorf("a bracket is not closed")
		}
		number := inner[:len(inner)-len(strings.TrimLeft(inner, "0123456789"))]
		if number == "" {
			return "", fmt.Errorf("no number after a bracket")
		}
		host, rest = host+number, after
	}
	return host, checkHost(host)
}

// tasksHere reads how many tasks srun started on this node from a list by node,
// such as "4(x2),3": two nodes with 4, one with 3.
func (v vars) tasksHere(name string) (int, error) {
	list := v.get(name)
	node := 0
	if v.has("SLURM_NODEID") {
		var err error
		if node, err = v.number("SLURM_NODEID", 0); err != nil {
			return 0, err
		}
	}
	for _, part := range strings.Split(list, ",") {
		text, times, many := strings.Cut(strings.TrimSuffix(part, ")"), "(x")
		tasks, err := strconv.Atoi(text)
		repeat := 1
		if err == nil && many {
			repeat, err = strconv.Atoi(times)
		}
		if err != nil || tasks < 1 || repeat < 1 {
			return 0, fmt.Errorf("%s=%q is not a list of tasks by node", name, list)
		}
		if node < repeat {
			return tasks, nil
		}
		node -= repeat
	}
	return 0, fmt.Errorf("%s=%q has no entry for SLURM_NODEID=%s", name, list, v.get("SLURM_NODEID"))
}
