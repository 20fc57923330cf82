package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

func TestApply(t *testing.T) {
	source := "func (r *Ring) Len() int {\n\tif r.n == 0 {\n\t\treturn 1\n\t}\n\treturn 1\n}\n\nfunc Len() int {\n\treturn 1\n}\n\n" +
		"static int length(int a,\n                  int b) {\n  return 1;\n}\n"
	for _, test := range []struct{ function, old, new, want string }{
		{"Ring.Len", "if r.n == 0 {", "if r.n != 0 {", "\tif r.n != 0 {\n"},
		{"Len", "return 1", "return 2", "func Len() int {\n\treturn 2\n"},
		{"length", "return 1;", "", "int b) {\n  \n}"},
		{"Ring.Len", "return 1", "return 2", ""}, // twice
		{"Len", "return 3", "return 2", ""},
	} {
		f := fault{function: test.function, old: test.old, new: test.new}
		got, err := f.apply(source)
		if (err != nil) != (test.want == "") {
			t.Errorf("%s, %q: %v", test.function, test.old, err)
		} else if !strings.Contains(got, test.want) {
			t.Errorf("%s, %q: got %s", test.function, test.old, got)
		}
	}
}

// TestTable keeps the table true to the tree: a fault whose line is gone checks nothing.
func TestTable(t *testing.T) {
	text := testerr.Must(os.ReadFile("faults.txt"))(t)
	table := testerr.Must(parse(string(text)))(t)
	numbers := map[int]bool{}
	for _, f := range table.faults {
		source, err := os.ReadFile(filepath.Join("../../..", f.file))
		if err == nil {
			_, err = f.apply(string(source))
		}
		if err != nil || numbers[f.number] || f.old == f.new {
			t.Errorf("fault %d, in %s of %s: %v. If the line moved or was reworded, write its new function or text into faults.txt; "+
				"otherwise replace the fault by one of the same package: go run ./internal/test/mutants -generate -seed %d",
				f.number, f.function, f.file, err, 1000+f.number)
		}
		numbers[f.number] = true
		if f.finders != nil {
			if _, err := os.Stat(filepath.Join("../../..", f.finders[0])); err != nil {
				t.Errorf("fault %d: %v", f.number, err)
			}
			if _, err := regexp.Compile(f.finders[1]); err != nil {
				t.Errorf("fault %d: %v", f.number, err)
			}
		}
	}
}
