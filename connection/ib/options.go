package ib

import (
	"log/slog"
	"math/bits"
	"strings"
	"time"

	"github.com/mscclgo/mscclgo"
)

// Options configure a [Transport]. The zero value is ready to use. Zero
// values of some fields are replaced by MSCCLGO_IB_DEVICE, MSCCLGO_IB_PORT, MSCCLGO_IB_GID_INDEX, MSCCLGO_IB_QUEUE_PAIRS,
// MSCCLGO_IB_SERVICE_LEVEL, MSCCLGO_IB_TRAFFIC_CLASS and MSCCLGO_IB_NO_ATOMICS (1: yes).
type Options struct {
	// Device is the name of the RDMA device, such as "mlx5_0", or of several separated
	// by commas, over which large writes are spread. "" means one or two devices that serve the
	// rank's GPU ([topology.Machine.NICsFor]), of the devices of ibv_devices with an active port.
	// If the first cannot be used, others are chosen without it. If the second cannot be used, or is
	// of another kind, it is left out. Logger gets a line of that.
	Device string
	// Port is the port of each device, counted from 1. 0 means the first active one.
	Port int
	// GIDIndex is the index in the port's GID table. 0 means to choose one, on RoCE one
	// of RoCE v2, with an IPv4 address if possible. -1 means index 0.
	GIDIndex int
	// QueuePairs is the number of queue pairs of a connection. 0 means one for each
	// device. Large writes are spread over all of them; an update waits for that. The
	// smaller number of both ends is used.
	QueuePairs int
	// Depth is the number of requests that a queue pair holds. 0 means 256, or the
	// device's limit.
	Depth int
	// MTU is the payload of a packet in bytes, from 256 to 4096. 0 means the port's.
	// The smaller one of both ends is used.
	MTU int
	// ServiceLevel, from 0 to 15, and TrafficClass set the quality of service;
	// see ibv_modify_qp(3). On RoCE v2 the traffic class is the IP header's.
	ServiceLevel, TrafficClass int
	// Lost is called, in a goroutine of its own, when what was queued on a connection fails because of the
	// peer or of the network to it, about 0.1 s after the card has given it up. It is not called when an end
	// has closed the connection: if both ends set Lost, each tells the other, and closing waits 2 s at most
	// for that. nil ignores it: the next call on the connection returns the error.
	Lost func(peer int, err error)
	// AckTimeout is the time after which a packet without acknowledgement is sent again,
	// rounded up to 4.096 µs times a power of 2. Devices have lower bounds. 0 means
	// 67 ms.
	AckTimeout time.Duration
	// Retries is how often that is done, from 1 to 7. 0 means 6, as Soft-RoCE retries
	// forever for 7. -1 means never. Timeout bounds it too.
	Retries int
	// RNRRetries is how often a message is sent again to a peer that has no room for
	// it; 7 is forever. 0 means 7. -1 means never.
	RNRRetries int
	// NoAtomics sends updates as messages, which the peer's process applies, even if
	// both devices have atomics. It is enough to set it on one rank.
	NoAtomics bool
	// Timeout is how long a peer may acknowledge nothing, and its process apply no
	// message, before the connection fails. 0 means the registry's.
	Timeout time.Duration
	// Logger gets the events of devices and failures of connections; nil discards.
	Logger *slog.Logger
}

// complete returns the options with defaults filled in.
func (o Options) complete(timeout time.Duration) (Options, error) {
	bad := func(format string, args ...any) (Options, error) {
		return o, mscclgo.Errorf(mscclgo.ErrInvalid, "ib: read the options", format, args...)
	}
	if err := o.fromEnv(); err != nil {
		return o, err
	}
	switch {
	case o.Port < 0 || o.Port > 255:
		return bad("Port is %d", o.Port)
	case o.GIDIndex < -1 || o.GIDIndex > 255:
		return bad("GIDIndex is %d, not from -1 to 255", o.GIDIndex)
	case o.QueuePairs < 0 || o.QueuePairs > maxQueuePairs:
		return bad("QueuePairs is %d, not from 0 to %d", o.QueuePairs, maxQueuePairs)
	case o.Depth < 0 || o.Depth > 0 && o.Depth < minDepth || o.Depth > maxDepth:
		return bad("Depth is %d, not from %d to %d", o.Depth, minDepth, maxDepth)
	case o.MTU != 0 && (o.MTU < 256 || o.MTU > 4096 || bits.OnesCount(uint(o.MTU)) != 1):
		return bad("MTU is %d, not 256, 512, 1024, 2048 or 4096", o.MTU)
	case o.ServiceLevel < 0 || o.ServiceLevel > 15:
		return bad("ServiceLevel is %d, not from 0 to 15", o.ServiceLevel)
	case o.TrafficClass < 0 || o.TrafficClass > 255:
		return bad("TrafficClass is %d, not from 0 to 255", o.TrafficClass)
	case o.AckTimeout < 0 || o.AckTimeout > maxAckTimeout:
		return bad("AckTimeout is %v, not from 0 to %v", o.AckTimeout, maxAckTimeout)
	case o.Retries < -1 || o.Retries > 7:
		return bad("Retries is %d, not from -1 to 7", o.Retries)
	case o.RNRRetries < -1 || o.RNRRetries > 7:
		return bad("RNRRetries is %d, not from -1 to 7", o.RNRRetries)
	case o.Timeout < 0:
		return bad("Timeout is %v", o.Timeout)
	}
	if o.Depth == 0 {
		o.Depth = 256
	}
	if o.AckTimeout == 0 {
		o.AckTimeout = ackUnit << 14
	}
	o.Retries = times(o.Retries, 6)
	o.RNRRetries = times(o.RNRRetries, 7)
	if o.Timeout == 0 {
		o.Timeout = timeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

// times returns a number of retries: usual for 0 and 0 for -1.
func times(n, usual int) int {
	switch n {
	case 0:
		return usual
	case -1:
		return 0
	}
	return n
}

// devices splits a list of names; an empty one is an error.
func devices(list string) ([]string, error) {
	names := strings.Split(list, ",")
	for i, name := range names {
		if names[i] = strings.TrimSpace(name); names[i] == "" {
			return nil, mscclgo.Errorf(mscclgo.ErrInvalid, "ib: read the options", "the list of devices %q has an empty name", list)
		}
	}
	if len(names) > maxQueuePairs {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, "ib: read the options", "the list has %d devices, more than %d", len(names), maxQueuePairs)
	}
	return names, nil
}

const (
	ackUnit       = 4096 * time.Nanosecond
	maxAckTimeout = ackUnit << 31
)

// ackExponent returns the exponent that sets a queue pair's timeout.
func ackExponent(d time.Duration) uint8 {
	e := uint8(1)
	for e < 31 && ackUnit<<e < d {
		e++
	}
	return e
}
