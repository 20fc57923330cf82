package topology

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxID bounds the numbers of CPUs and nodes. Linux can be built for 8192 CPUs.
const maxID = 1<<16 - 1

// parseList parses the kernel's list format, such as "0-3,8,10-11\n", of the files
// cpulist and online in sysfs. The numbers are ascending. An empty list is valid: a NUMA
// node without CPUs has one.
func parseList(s string) ([]int, error) {
	s = strings.TrimSuffix(s, "\n")
	if s == "" {
		return nil, nil
	}
	var list []int
	next := 0 // the smallest number that may follow, as the kernel's lists are ascending
	for item := range strings.SplitSeq(s, ",") {
		low, high, isRange := strings.Cut(item, "-")
		first, err := parseID(low)
		if err != nil {
			return nil, err
		}
		last := first
		if isRange {
			if last, err = parseID(high); err != nil {
				return nil, err
			}
		}
		if first < next || last < first {
			return nil, fmt.Errorf("%q is not ascending", item)
		}
		for n := first; n <= last; n++ {
			list = append(list, n)
		}
		next = last + 1
	}
	return list, nil
}

func parseID(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n > maxID {
		return 0, fmt.Errorf("%.20q is not a number from 0 to %d", s, maxID)
	}
	return int(n), nil
}

// CPUList returns an ascending list as the kernel writes it, "0-31,64-95".
func CPUList(list []int) string {
	var b strings.Builder
	for i := 0; i < len(list); {
		end := i + 1
		for end < len(list) && list[end] == list[end-1]+1 {
			end++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(list[i]))
		if end-i > 1 {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(list[end-1]))
		}
		i = end
	}
	return b.String()
}

// contains reports whether all of part is in whole; both are ascending.
func contains(whole, part []int) bool {
	for _, n := range part {
		if _, found := slices.BinarySearch(whole, n); !found {
			return false
		}
	}
	return true
}
