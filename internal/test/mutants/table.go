package main

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// An area is packages whose faults are looked for by the same tests, after their own.
type area struct {
	name            string
	packages, tests []string
}

// A fault is a line of a function and what it is replaced by, both without indentation.
type fault struct {
	number         int
	area           string
	file, function string // Go's methods are Type.method
	old, new       string
	finders        []string // a package and a pattern of its tests that have found the fault, or none
}

type table struct {
	areas  []area
	faults []fault
}

// key identifies a fault in the results, so that one that was replaced is run again.
func (f fault) key() string {
	return fmt.Sprintf("%d %s %s [%s => %s]", f.number, f.file, f.function, f.old, f.new)
}

// parse reads lines "area NAME PACKAGE... : TESTS...", and faults of three lines:
// "NUMBER FILE FUNCTION [PACKAGE PATTERN]", "- OLD" and "+ NEW".
func parse(text string) (table, error) {
	var t table
	lines := slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return l == "" || l[0] == '#' })
	for i := 0; i < len(lines); i++ {
		if rest, ok := strings.CutPrefix(lines[i], "area "); ok {
			packages, tests, _ := strings.Cut(rest, ":")
			names := strings.Fields(packages)
			t.areas = append(t.areas, area{names[0], names[1:], strings.Fields(tests)})
			continue
		}
		var f fault
		if _, err := fmt.Sscan(lines[i], &f.number, &f.file, &f.function); err != nil || i+2 >= len(lines) || lines[i+1][0] != '-' || lines[i+2][0] != '+' {
			return t, fmt.Errorf("table: a fault begins with a number, file and function, and then lines - and +: %q", lines[i])
		}
		if more := strings.Fields(lines[i])[3:]; len(more) == 2 {
			f.finders = more
		}
		f.old, f.new = strings.TrimSpace(lines[i+1][1:]), strings.TrimSpace(lines[i+2][1:])
		for _, a := range t.areas {
			if slices.Contains(a.packages, path.Dir(f.file)) {
				f.area = a.name
			}
		}
		if f.area == "" {
			return t, fmt.Errorf("table: no area has the package of fault %d, %s", f.number, f.file)
		}
		t.faults = append(t.faults, f)
		i += 2
	}
	return t, nil
}

var errGone = errors.New("the line is not there exactly once")

// apply returns source with the fault, or errGone.
func (f fault) apply(source string) (string, error) {
	lines, at := strings.Split(source, "\n"), -1
	for i, name := range functions(lines) {
		if name == f.function && strings.TrimSpace(lines[i]) == f.old {
			if at >= 0 {
				return "", errGone
			}
			at = i
		}
	}
	if at < 0 {
		return "", errGone
	}
	lines[at] = strings.Replace(lines[at], f.old, f.new, 1)
	return strings.Join(lines, "\n"), nil
}

var (
	goFunction = regexp.MustCompile(`^func (?:\((?:\w+ )?\*?(\w+)(?:\[.*?\])?\) )?(\w+)`)
	cFunction  = regexp.MustCompile(`^[a-z][\w *]*?(\w+)\(`)
)

// functions returns the function that each line is in the body of, or "": the functions
// of formatted Go and C begin in the first column, and end with a brace there.
func functions(lines []string) []string {
	in, name := make([]string, len(lines)), ""
	for i, line := range lines {
		if m := goFunction.FindStringSubmatch(line); m != nil {
			name = strings.TrimPrefix(m[1]+"."+m[2], ".")
		} else if m := cFunction.FindStringSubmatch(line); m != nil {
			name = m[1]
		} else if line == "}" || strings.HasPrefix(line, "type ") {
			name = ""
		} else {
			in[i] = name
		}
		if strings.HasSuffix(line, ";") && line[0] != ' ' && line[0] != '\t' || strings.HasPrefix(line, "func") && strings.HasSuffix(line, "}") {
			name = "" // a declaration, or a function of one line
		}
	}
	return in
}
