package ib

// #include "post.h"
import "C"

// maxQueuePairs is the largest number of queue pairs of a connection.
const maxQueuePairs = C.IB_QUEUES

// Depths of a queue pair.
const (
	minDepth = 16
	maxDepth = 1 << 14
)

// piece is a part of a write, for one request.
type piece struct{ offset, n uint64 }

// spreadFrom is the size from which a write is spread over all queue pairs.
const spreadFrom = C.IB_SPREAD_FROM

// spread returns the part of n bytes that queue pair i of count writes. All parts but
// the last are whole pages.
func spread(n uint64, i, count int) piece {
	if n < spreadFrom { // a call of C takes longer
		if i > 0 {
			return piece{}
		}
		return piece{0, n}
	}
	var begin C.uint64_t
	size := C.ib_spread(C.uint64_t(n), C.uint32_t(i), C.uint32_t(count), &begin)
	return piece{uint64(begin), uint64(size)}
}
