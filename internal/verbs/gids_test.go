package verbs

import (
	"strings"
	"testing"
	"testing/fstest"
)

// table returns a sysfs with the lines "index address type" of port 1 of rxe0.
func table(lines ...string) fstest.MapFS {
	root := fstest.MapFS{}
	const dir = "class/infiniband/rxe0/ports/1/"
	for _, line := range lines {
		index, rest, _ := strings.Cut(line, " ")
		address, kind, _ := strings.Cut(rest, " ")
		root[dir+"gids/"+index] = &fstest.MapFile{Data: []byte(address + "\n")}
		if kind != "" {
			root[dir+"gid_attrs/types/"+index] = &fstest.MapFile{Data: []byte(kind + "\n")}
		}
	}
	return root
}

const (
	v1    = " IB/RoCE v1"
	v2    = " RoCE v2"
	local = "fe80:0000:0000:0000:0202:00ff:fe00:0001"
	ipv4  = "0000:0000:0000:0000:0000:ffff:0a4d:0001"
	ipv6  = "2001:0db8:0000:0000:0000:0000:0000:0001"
	empty = "0000:0000:0000:0000:0000:0000:0000:0000"
)

func TestBestGID(t *testing.T) {
	for _, c := range []struct {
		name  string
		table []string
		want  int // -1: none
	}{
		{"all", []string{"0 " + local + v1, "1 " + local + v2, "2 " + ipv6 + v2, "3 " + ipv4 + v1, "4 " + ipv4 + v2, "5 " + empty}, 4},
		{"without IPv4", []string{"0 " + local + v2, "1 " + ipv6 + v1, "2 " + ipv6 + v2}, 2},
		{"link-local alone", []string{"0 " + local + v1, "1 " + local + v2}, 1},
		{"the first of several, by number", []string{"10 " + ipv4 + v2, "9 " + ipv4 + v2}, 9},
		{"what is behind the best is not read", []string{"1 " + ipv4 + v2, "2 nonsense"}, 1},
		{"v1 alone", []string{"0 " + local + v1, "1 " + ipv4 + v1}, -1},
		{"empty entries", []string{"0 " + empty + v2, "1 " + empty}, -1},
		{"no type", []string{"0 " + ipv4}, -1},
	} {
		gids, err := GIDs(table(c.table...), "rxe0", 1)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		best, ok := BestGID(gids)
		if !ok {
			best.Index = -1
		}
		if best.Index != c.want {
			t.Errorf("%s: entry %d, want %d", c.name, best.Index, c.want)
		}
	}
}

func TestGIDsErrors(t *testing.T) {
	for name, root := range map[string]fstest.MapFS{
		"no such device": {},
		"bad index":      table("x " + ipv4 + v2),
		"bad address":    table("0 nonsense" + v2),
	} {
		if gids, err := GIDs(root, "rxe0", 1); err == nil {
			t.Errorf("%s: %v", name, gids)
		}
	}
}
