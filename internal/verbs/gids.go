package verbs

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// GID is an entry of a RoCE port's GID table.
type GID struct {
	Index   int
	Address [16]byte
	V2      bool // RoCE v2: over UDP, which is routed
}

// bestRank is the highest rank of an entry.
const bestRank = 3

// GIDs returns the entries of a port's GID table that are not empty, by their indexes. It leaves out what is behind one that
// no other is better than: a Soft-RoCE device has 1024 entries, each of which is a file. root is sysfs.
func GIDs(root fs.FS, device string, port int) ([]GID, error) {
	dir := fmt.Sprintf("class/infiniband/%s/ports/%d", device, port)
	entries, err := fs.ReadDir(root, dir+"/gids")
	if err != nil {
		return nil, err
	}
	indexes := make([]int, len(entries))
	for i, e := range entries {
		if indexes[i], err = strconv.Atoi(e.Name()); err != nil {
			return nil, fmt.Errorf("%s/gids/%s is no number", dir, e.Name())
		}
	}
	slices.Sort(indexes)
	var gids []GID
	for _, index := range indexes {
		name := strconv.Itoa(index)
		text, err := fs.ReadFile(root, dir+"/gids/"+name)
		if err != nil {
			return nil, err
		}
		address, err := netip.ParseAddr(string(bytes.TrimSpace(text)))
		if err != nil {
			return nil, fmt.Errorf("%s/gids/%s: %w", dir, name, err)
		}
		if address.IsUnspecified() {
			continue
		}
		// Reading the type of an entry without a network device fails.
		kind, _ := fs.ReadFile(root, dir+"/gid_attrs/types/"+name)
		g := GID{index, address.As16(), strings.TrimSpace(string(kind)) == "RoCE v2"}
		gids = append(gids, g)
		if g.rank() == bestRank {
			break
		}
	}
	return gids, nil
}

// BestGID returns the entry by which most peers can be addressed: one of RoCE v2 with
// an IPv4 address, else with a routed IPv6 address, else with a link-local one. ok is
// false if there is none of RoCE v2.
func BestGID(gids []GID) (best GID, ok bool) {
	rank := 0
	for _, g := range gids {
		if r := g.rank(); r > rank || r == rank && ok && g.Index < best.Index {
			best, rank, ok = g, r, true
		}
	}
	return best, ok
}

func (g GID) rank() int {
	a := netip.AddrFrom16(g.Address)
	switch {
	case !g.V2:
		return 0
	case a.Is4In6():
		return bestRank
	case a.IsLinkLocalUnicast():
		return 1
	}
	return 2
}
