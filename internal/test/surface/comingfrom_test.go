package surface

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// libraries are the sections of docs/COMING-FROM.md, the lists of the names that they map, and
// what looks like a name of that library.
var libraries = []struct {
	section, list string
	name          *regexp.Regexp
}{
	{"NCCL", "nccl.txt", regexp.MustCompile(`^nccl[A-Z]\w*(?:::\w+)?$`)},
	{"MSCCL++", "mscclpp.txt", regexp.MustCompile(`^[A-Za-z]\w*(?:::\w+)?$`)},
	{"NVSHMEM", "nvshmem.txt", regexp.MustCompile(`^nvshmemx?_\w+$`)},
}

// TestComingFrom compares docs/COMING-FROM.md with the names of the libraries: it maps each, and
// no other.
func TestComingFrom(t *testing.T) {
	document := testerr.Must(os.ReadFile("../../../docs/COMING-FROM.md"))(t)
	for _, l := range libraries {
		list := testerr.Must(os.ReadFile("testdata/coming-from/" + l.list))(t)
		for _, problem := range unmapped(string(document), l.section, string(list), l.name) {
			t.Errorf("docs/COMING-FROM.md, %s: %s", l.section, problem)
		}
	}
}

// unmapped returns the names of the list that no first column of the section has, the names
// there that the list does not have, and the names that the list has twice.
func unmapped(document, section, list string, name *regexp.Regexp) (problems []string) {
	mapped := map[string]bool{}
	_, text, _ := strings.Cut(document, "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	for line := range strings.Lines(text) {
		if cells := strings.Split(line, "|"); len(cells) >= 3 && cells[0] == "" {
			for _, m := range span.FindAllStringSubmatch(cells[1], -1) {
				mapped[m[1]] = true
			}
		}
	}
	listed := map[string]bool{}
	for line := range strings.Lines(list) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case listed[line]:
			problems = append(problems, fmt.Sprintf("the list has %s twice", line))
		case !mapped[line]:
			problems = append(problems, fmt.Sprintf("no row has %s", line))
		}
		listed[line] = true
	}
	for line := range strings.Lines(text) { // in their order
		for _, m := range span.FindAllStringSubmatch(line, -1) {
			if mapped[m[1]] && name.MatchString(m[1]) && !listed[m[1]] {
				problems = append(problems, fmt.Sprintf("the list does not have %s", m[1]))
				delete(mapped, m[1])
			}
		}
	}
	return problems
}

// TestUnmapped has a page that lacks a name, and has one that does not exist.
func TestUnmapped(t *testing.T) {
	const document = "# Coming\n\n## A\n\n| A | here |\n| --- | --- |\n| `libGet`, `libPut` to it | `libHere` |\n| `libGot` | none |\n" +
		"| `lib-tests` | none |\n\n## B\n\n| B | here |\n| --- | --- |\n| `libOther` | none |\n"
	const list = "# of lib.h\nlibGet\nlibPut\n\nlibOther\nlibHere\nlibPut\n"
	got := unmapped(document, "A", list, regexp.MustCompile(`^lib[A-Z]\w*$`))
	want := []string{"no row has libOther", "no row has libHere", "the list has libPut twice", "the list does not have libGot"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}
