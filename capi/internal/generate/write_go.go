package main

import (
	"fmt"
	"go/format"
	"go/token"
	"strings"
)

const beginningOfGo = `
package capi

// #include "process.h"
import "C"
`

const functionOfGo = `
//export capi_%[1]s
func capi_%[1]s(%[2]s) (status C.mscclgo_status) {
	var c call
	defer c.end(&status)
	c.err = c.%[3]s(%[4]s)
	return
}
`

// functionsOfGo returns exports.go.
func functionsOfGo(h *header) string {
	var b strings.Builder
	b.WriteString("//" + mark + beginningOfGo)
	for _, f := range h.calls() {
		var params, args []string
		for _, p := range f.params {
			name := p.name
			if token.IsKeyword(name) || name == "call" {
				name += "_"
			}
			params = append(params, name+" "+h.cgo(p.ctype))
			if number, ok := numbersOfGo[p.ctype]; ok {
				name = number + "(" + name + ")"
			}
			args = append(args, name)
		}
		fmt.Fprintf(&b, functionOfGo, f.name, strings.Join(params, ", "), method(f.name), strings.Join(args, ", "))
	}
	text, err := format.Source([]byte(b.String()))
	if err != nil {
		panic(err) // for the test and whoever changes this program
	}
	return string(text)
}

var numbersOfGo = map[string]string{"int": "int", "int64_t": "int64", "uint32_t": "uint32", "uint64_t": "uint64", "size_t": "uint64"}

// cgo returns the type of C as cgo has it, where handles and addresses are numbers.
func (h *header) cgo(ctype string) string {
	plain := strings.ReplaceAll(ctype, "const", "")
	base := strings.Trim(plain, "* ")
	pointers := strings.Repeat("*", strings.Count(plain, "*"))
	switch {
	case h.handles[base]:
		base = "uintptr_t"
	case base == "void":
		base, pointers = "uintptr_t", pointers[1:]
	}
	return pointers + "C." + base
}

// method returns the name of the method of call that does what a function is for.
func method(name string) string {
	name = camel(name)
	if of, ok := strings.CutSuffix(name, "Id"); ok {
		name = of + "ID"
	}
	return strings.ToLower(name[:1]) + name[1:]
}
