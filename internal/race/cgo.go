package race

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -I${SRCDIR}/../../devicecode/include -I${SRCDIR}/..
#include "host.h"
*/
import "C"
