package main

import (
	"fmt"
	"strconv"
	"strings"
)

// numbersOfPython are the types of numbers: for ctypes, and as a letter in FUNCTIONS.
var numbersOfPython = map[string]struct{ name, letter string }{
	"int":           {"c_int", "i"},
	"int64_t":       {"c_int64", "l"},
	"uint32_t":      {"c_uint32", "I"},
	"uint64_t":      {"c_uint64", "L"},
	"size_t":        {"c_size_t", "z"},
	"char":          {"c_char", ""},
	"unsigned char": {"c_ubyte", ""},
}

const beginningOfPython = `"""What mscclgo.h declares, for ctypes."""

import ctypes

`

// declarationsOfPython returns _header.py.
func declarationsOfPython(h *header) string {
	var b strings.Builder
	b.WriteString("#" + mark + beginningOfPython)
	for _, c := range h.constants {
		fmt.Fprintf(&b, "%s = %s\n", c.name, c.value)
	}
	for _, s := range h.structs {
		if words := s.fields[0]; words.name == "words" { // what kernels take by value
			n, _ := strconv.Atoi(words.length)
			fmt.Fprintf(&b, "%s_BYTES = %d\n", strings.ToUpper(s.name), 8*n)
		}
	}
	b.WriteString("\n# The functions that return a status: the types of their parameters, a letter each.\nFUNCTIONS = dict(\n")
	for _, f := range h.functions {
		if f.returnsStatus() {
			fmt.Fprintf(&b, "    %s=\"%s\",\n", f.name, h.letters(f))
		}
	}
	b.WriteString(")\n")
	for _, s := range h.structs {
		if s.fields[0].name == "words" {
			continue
		}
		fmt.Fprintf(&b, "\n\nclass %s(ctypes.Structure):\n    _fields_ = [\n", camel(s.name))
		for _, f := range s.fields {
			fmt.Fprintf(&b, "        (\"%s\", %s),\n", f.name, h.ctypes(f))
		}
		b.WriteString("    ]\n")
	}
	return b.String()
}

// letters returns the letters of a function's parameters.
func (h *header) letters(f function) (all string) {
	for _, p := range f.params {
		letter := "p"
		if number, ok := numbersOfPython[h.plain(p.ctype)]; ok {
			letter = number.letter
		} else if p.ctype == "const char*" {
			letter = "s"
		}
		all += letter
	}
	return all
}

// ctypes returns the type of a field.
func (h *header) ctypes(f variable) string {
	of := h.pointer(strings.ReplaceAll(f.ctype, "const ", ""))
	if f.length != "" {
		of += " * " + f.length
	}
	return of
}

func (h *header) pointer(ctype string) string {
	to, is := strings.CutSuffix(ctype, "*")
	switch {
	case ctype == "char*":
		return "ctypes.c_char_p"
	case ctype == "void*" || h.handles[ctype]:
		return "ctypes.c_void_p"
	case is:
		return "ctypes.POINTER(" + h.pointer(strings.TrimSuffix(to, " const")) + ")"
	}
	return "ctypes." + numbersOfPython[h.plain(ctype)].name
}

// plain returns a type, where an enum is an int.
func (h *header) plain(ctype string) string {
	if h.enums[ctype] {
		return "int"
	}
	return ctype
}

// camel returns a name as classes and Go have it.
func camel(name string) (joined string) {
	for word := range strings.SplitSeq(name, "_") {
		joined += strings.ToUpper(word[:1]) + word[1:]
	}
	return joined
}
