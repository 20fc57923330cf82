// Package ledgertest lets tests of package ib do what C does with a ledger. Package ib has the
// types, which this one cannot import.
package ledgertest

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -I${SRCDIR}/.. -I${SRCDIR}/../../../../internal
#include "ledger/ledger.h"
*/
import "C"

import (
	"unsafe"

	_ "github.com/mscclgo/mscclgo/connection/ib/internal/ledger" // the header
	_ "github.com/mscclgo/mscclgo/internal/verbs"                // and one that it includes
)

// Add adds a request and returns its number, and whether it requests a completion.
func Add(ledger, entry unsafe.Pointer, signal bool) (id uint64, signaled bool) {
	var flags C.uint16_t
	id = uint64(C.ib_add((*C.ib_ledger)(ledger), (*C.ib_entry)(entry), C.bool(signal), &flags))
	return id, flags == C.IBV_SEND_SIGNALED
}

// Complete records a completion, and reports whether the request was under way.
func Complete(ledger unsafe.Pointer, id uint64) bool {
	var what C.ib_entry
	return bool(C.ib_complete((*C.ib_ledger)(ledger), C.uint64_t(id), &what))
}

// Silence counts a poll, and returns for how many nanoseconds polls have found nothing.
func Silence(ledger unsafe.Pointer, found bool) int64 {
	return int64(C.ib_silence((*C.ib_ledger)(ledger), C.bool(found)))
}

// Conflict returns the number below which all requests must be done before another is posted.
func Conflict(ledger, next unsafe.Pointer, same bool) uint64 {
	return uint64(C.ib_conflict((*C.ib_ledger)(ledger), (*C.ib_entry)(next), C.bool(same)))
}
