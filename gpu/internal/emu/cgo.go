package emu

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -I${SRCDIR}/../../../devicecode/include -I${SRCDIR}/../../../internal
#cgo LDFLAGS: -lpthread -ldl
#include <stdlib.h>
#include "launch.h"
#include "memory.h"
#include "pool.h"

// The go command does not see a change of a header in another folder; with this line, it sees one of here.
_Static_assert(MSCCLGO_EMU_ABI == 12, "abi.h has another version");
*/
import "C"

// abiVersion is the version of <mscclgo/emu/abi.h> that this build runs.
const abiVersion = C.MSCCLGO_EMU_ABI
