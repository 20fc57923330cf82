package verbs

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"
)

// GID is an entry of a RoCE port's GID table.
type GID struct {
	Index   int
	Address [16]byte
	V2      bool // RoCE v2: over UDP, which is routed
}

// GIDs returns the entries of a port's GID table that are not empty. root is sysfs.
func GIDs(root fs.FS, device string, port int) ([]GID, error) {
	dir := fmt.Sprintf("class/infiniband/%s/ports/%d", device, port)
	entries, err := fs.ReadDir(root, dir+"/gids")
	if err != nil {
		return nil, err
	}
	var gids []GID
	for _, e := range entries {
		index, err := strconv.Atoi(e.Name())
		if err != nil {
			return nil, fmt.Errorf("%s/gids/%s is no number", dir, e.Name())
		}
		text, err := fs.ReadFile(root, dir+"/gids/"+e.Name())
		if err != nil {
			return nil, err
		}
		address, err := netip.ParseAddr(string(bytes.TrimSpace(text)))
		if err != nil {
			return nil, fmt.Errorf("%s/gids/%s: %w", dir, e.Name(), err)
		}
		if address.IsUnspecified() {
			continue
		}
		// Reading the type of an entry without a network device fails.
		kind, _ := fs.ReadFile(root, dir+"/gid_attrs/types/"+e.Name())
		gids = append(gids, GID{index, address.As16(), strings.TrimSpace(string(kind)) == "RoCE v2"})
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
		return 3
	case a.IsLinkLocalUnicast():
		return 1
	}
	return 2
}
