package topology

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/mscclgo/mscclgo"
)

// Limits on what is read of sysfs. The longest list of CPUs that the kernel can write
// has some 20 KiB, the largest folder some thousand PCI devices.
const (
	maxAttribute = 64 << 10
	maxEntries   = 64 << 10
)

// sysfs reads the files under /sys, within bounds.
type sysfs struct{ root fs.FS }

// attribute returns the content of a file without the end of line. It is unknown if the
// file cannot be read, because the kernel has no such attribute or the device is down.
func (s sysfs) attribute(name string) (value string, known bool) {
	f, err := s.root.Open(name)
	if err != nil {
		return "", false
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxAttribute+1))
	if err != nil || len(content) > maxAttribute {
		return "", false
	}
	return strings.TrimSuffix(string(content), "\n"), true
}

// nonsense returns the error for a file with malformed content.
func nonsense(name string, err error) error {
	return mscclgo.Errorf(mscclgo.ErrSystem, opDiscover, "/sys/%s: %w", name, err)
}

// list reads a list of CPUs or nodes. It is nil if there is no such file.
func (s sysfs) list(name string) ([]int, error) {
	text, known := s.attribute(name)
	if !known {
		return nil, nil
	}
	list, err := parseList(text)
	if err != nil {
		return nil, nonsense(name, err)
	}
	return list, nil
}

// number reads an integer from low to high. It is unknown if there is no such file.
func (s sysfs) number(name string, low, high, unknown int) (int, error) {
	text, known := s.attribute(name)
	if !known {
		return unknown, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		return unknown, nonsense(name, fmt.Errorf("%.20q is not a number from %d to %d", text, low, high))
	}
	return n, nil
}

// names lists a folder in natural order. The list is nil if there is no such folder.
func (s sysfs) names(folder string) ([]string, error) {
	f, err := s.root.Open(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, nonsense(folder, err)
	}
	defer f.Close()
	d, ok := f.(fs.ReadDirFile)
	if !ok {
		return nil, nonsense(folder, errors.New("is not a folder"))
	}
	entries, err := d.ReadDir(maxEntries)
	if err != nil && err != io.EOF {
		return nil, nonsense(folder, err)
	}
	if len(entries) == maxEntries {
		return nil, nonsense(folder, fmt.Errorf("has %d entries or more", maxEntries))
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	slices.SortFunc(names, natural)
	return names, nil
}

// where returns the target under devices of a symbolic link, such as every device in
// class and bus is, or "" if name is not a link within sysfs.
func (s sysfs) where(name string) string {
	target, err := fs.ReadLink(s.root, name)
	if err != nil || path.IsAbs(target) {
		return ""
	}
	place := path.Join(path.Dir(name), target)
	if !strings.HasPrefix(place, "devices/") {
		return ""
	}
	return place
}

// nodes reads the NUMA nodes.
func (s sysfs) nodes() ([]Node, error) {
	const folder = "devices/system/node"
	ids, err := s.list(folder + "/online")
	if err != nil {
		return nil, err
	}
	nodes := make([]Node, 0, len(ids))
	for _, id := range ids {
		dir := fmt.Sprintf("%s/node%d", folder, id)
		cpus, err := s.list(dir + "/cpulist")
		if err != nil {
			return nil, err
		}
		distances, err := s.distances(dir+"/distance", len(ids))
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, Node{ID: id, CPUs: cpus, Distances: distances})
	}
	return nodes, nil
}

// distances reads a row of ACPI's SLIT, such as "10 21". A SLIT entry is a byte.
func (s sysfs) distances(name string, nodes int) ([]int, error) {
	text, known := s.attribute(name)
	if !known {
		return nil, nil
	}
	fields := strings.Fields(text)
	if len(fields) != nodes {
		return nil, nonsense(name, fmt.Errorf("has %d distances for %d nodes", len(fields), nodes))
	}
	row := make([]int, nodes)
	for i, f := range fields {
		d, err := strconv.ParseUint(f, 10, 8)
		if err != nil {
			return nil, nonsense(name, fmt.Errorf("%.20q is not a distance from 0 to 255", f))
		}
		row[i] = int(d)
	}
	return row, nil
}

// natural orders names so that mlx5_2 comes before mlx5_10.
func natural(a, b string) int {
	headA, tailA := splitNumber(a)
	headB, tailB := splitNumber(b)
	if headA == headB && tailA != tailB {
		if len(tailA) != len(tailB) {
			return len(tailA) - len(tailB)
		}
		return strings.Compare(tailA, tailB)
	}
	return strings.Compare(a, b)
}

// splitNumber separates the digits at the end.
func splitNumber(s string) (head, digits string) {
	i := len(s)
	for i > 0 && '0' <= s[i-1] && s[i-1] <= '9' {
		i--
	}
	return s[:i], s[i:]
}
