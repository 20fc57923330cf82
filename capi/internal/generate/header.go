package main

import (
	"regexp"
	"strings"
)

// header is what mscclgo.h declares, in its order. The names of functions and structs are without "mscclgo_",
// and of constants without "MSCCLGO_".
type header struct {
	functions []function
	structs   []structure
	constants []constant      // macros that are numbers, and values of enums
	handles   map[string]bool // the types of handles
	enums     map[string]bool // the types of enums
}

type function struct {
	result, name string
	params       []variable
}

// returnsStatus reports whether it is a function that may fail.
func (f function) returnsStatus() bool { return f.result == "mscclgo_status" }

type structure struct {
	name   string
	fields []variable
}

// variable is a parameter or a field, of a type such as "const char*".
type variable struct {
	ctype, name string
	length      string // of an array, or ""
}

type constant struct{ name, value string }

var (
	handleDecl   = regexp.MustCompile(`typedef struct mscclgo_\w+\* (\w+);`)
	functionDecl = regexp.MustCompile(`(?s)MSCCLGO_API ([^(]*?)mscclgo_(\w+)\(([^)]*)\);`)
	structDecl   = regexp.MustCompile(`typedef struct \{([^}]*)\} mscclgo_(\w+);`)
	enumDecl     = regexp.MustCompile(`(?:typedef )?enum \{([^}]*)\} ?(\w*);`)
	valueDecl    = regexp.MustCompile(`MSCCLGO_(\w+) = (-?\d+)`)
	macroDecl    = regexp.MustCompile(`(?m)^#define MSCCLGO_(\w+) (0x[0-9a-f]+|\d+)$`)
	comment      = regexp.MustCompile(`//.*`)
)

// parse reads a header that is written as mscclgo.h is, which the compilers check.
func parse(text string) *header {
	text = comment.ReplaceAllString(text, "")
	h := &header{handles: map[string]bool{}, enums: map[string]bool{}}
	for _, m := range handleDecl.FindAllStringSubmatch(text, -1) {
		h.handles[m[1]] = true
	}
	for _, m := range macroDecl.FindAllStringSubmatch(text, -1) {
		h.constants = append(h.constants, constant{m[1], m[2]})
	}
	for _, m := range enumDecl.FindAllStringSubmatch(text, -1) {
		h.enums[m[2]] = true
		for _, v := range valueDecl.FindAllStringSubmatch(m[1], -1) {
			h.constants = append(h.constants, constant{v[1], v[2]})
		}
	}
	for _, m := range structDecl.FindAllStringSubmatch(text, -1) {
		s := structure{name: m[2]}
		for decl := range strings.SplitSeq(m[1], ";") {
			s.fields = append(s.fields, variables(decl)...)
		}
		h.structs = append(h.structs, s)
	}
	for _, m := range functionDecl.FindAllStringSubmatch(text, -1) {
		f := function{result: strings.TrimSpace(m[1]), name: m[2]}
		for param := range strings.SplitSeq(m[3], ",") {
			if strings.TrimSpace(param) != "void" {
				f.params = append(f.params, variables(param)...)
			}
		}
		h.functions = append(h.functions, f)
	}
	return h
}

var declarator = regexp.MustCompile(`^(\**)(\w+)(?:\[(\d+)\])?$`)

// variables returns what a declaration of one type declares, such as "const int *to, *from", or nothing if it
// is empty.
func variables(decl string) (all []variable) {
	base := ""
	for part := range strings.SplitSeq(strings.Join(strings.Fields(decl), " "), ",") {
		if at := strings.LastIndex(part, " "); at > 0 {
			base, part = strings.TrimSpace(part[:at]), part[at:]
		}
		if m := declarator.FindStringSubmatch(strings.TrimSpace(part)); m != nil {
			all = append(all, variable{base + m[1], m[2], m[3]})
		}
	}
	return all
}
