package main

import (
	"fmt"
	"slices"
	"strings"
)

// byHand are the functions that return a status and are in entry.c.
var byHand = []string{"send", "recv"}

// calls returns the functions that call Go.
func (h *header) calls() []function {
	return slices.DeleteFunc(slices.Clone(h.functions), func(f function) bool {
		return !f.returnsStatus() || slices.Contains(byHand, f.name)
	})
}

const beginningOfC = `// clang-format off

// Each function enters the library, calls the function of Go of its name and leaves. In Go, handles and
// addresses are numbers: its collector may not see a pointer that points nowhere.
#include "_cgo_export.h"
#include "process.h"

#define CALL(name, parameters, arguments)              \
  mscclgo_status mscclgo_##name parameters {           \
    void* context;                                     \
    if (!capi_enter(&context)) return MSCCLGO_INVALID; \
    mscclgo_status status = capi_##name arguments;     \
    capi_leave(context);                               \
    return status;                                     \
  }

`

// functionsOfC returns exports.c.
func functionsOfC(h *header) string {
	var b strings.Builder
	b.WriteString("//" + mark + beginningOfC)
	for _, f := range h.calls() {
		var params, args []string
		for _, p := range f.params {
			params = append(params, p.ctype+" "+p.name)
			args = append(args, h.number(p.ctype)+p.name)
		}
		fmt.Fprintf(&b, "CALL(%s, (%s),\n     (%s))\n", f.name, strings.Join(params, ", "), strings.Join(args, ", "))
	}
	return b.String()
}

// number returns what converts a value of a type of C to the type that Go has for it, or "".
func (h *header) number(ctype string) string {
	plain := strings.TrimPrefix(ctype, "const ")
	to, pointers := strings.CutSuffix(plain, "*")
	switch {
	case h.handles[plain], plain == "void*":
		return "(uintptr_t)"
	case h.handles[to], to == "void*":
		return "(uintptr_t*)"
	case pointers && strings.Contains(ctype, "const"):
		return "(" + strings.ReplaceAll(plain, " const", "") + ")"
	}
	return ""
}
