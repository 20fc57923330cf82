package ethernet

import (
	"time"

	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/inside"
)

// watchLinks looks whether the network loses what is sent to the peer.
func (c *conn) watchLinks(now time.Time) {
	if c.links == nil {
		c.links = make([]handshake.Link, len(c.sockets))
	}
	lossy := int64(0)
	for i := range c.links {
		if since := c.links[i].Look(c.sockets[i], now); !since.IsZero() && (lossy == 0 || since.UnixNano() < lossy) {
			lossy = since.UnixNano()
		}
	}
	c.lossy.Store(lossy)
}

// Internal is for packages of this module.
func (t *Transport) Internal() inside.Ethernet { return transportInside{t} }

type transportInside struct{ *Transport }

func (t transportInside) Lossy() (peer int, since time.Time) {
	first := int64(0)
	for _, c := range message.All[*conn](&t.rank) {
		if at := c.lossy.Load(); at != 0 && (first == 0 || at < first) {
			first, peer, since = at, c.Peer, time.Unix(0, at)
		}
	}
	return peer, since
}
