package main

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

const doc = `
| folder | is for | sits on |
| --- | --- | --- |
| ` + "`cmd/`" + ` | the command | all |
| ` + "`top/`, `beside/`" + ` | two folders | middle |
| ` + "`middle/`" + ` | and ` + "`what`" + ` lies in it | internal |
| ` + "`other/`" + ` | nobody's | ` + "`.`" + ` |
| ` + "`internal/a/`, `internal/b/`" + ` | helpers | ` + "`.`" + ` |
| ` + "`.`" + `, the root | errors | — |

| header | |
| --- | --- |
| ` + "`one.cuh`, `two.cuh`" + ` | some |
| ` + "`emu/`" + ` | more |
`

var allFolders = []string{"", "cmd/x", "top", "beside", "middle", "middle/sub", "other", "internal/a", "internal/b"}

// pkgs returns packages of the module m: all folders of the document, and those
// imports.
func pkgs(imports ...[2]string) []goPackage {
	path := func(name string) string { return strings.TrimSuffix("m/"+name, "/") }
	all := map[string]*goPackage{}
	var order []string
	add := func(name string) *goPackage {
		if all[name] == nil {
			all[name] = &goPackage{ImportPath: path(name), Imports: []string{"fmt", "module/m/cmd"}}
			all[name].Module.Path = "m"
			order = append(order, name)
		}
		return all[name]
	}
	for _, name := range allFolders {
		add(name)
	}
	for _, i := range imports {
		p := add(i[0])
		p.Imports = append(p.Imports, path(i[1]))
	}
	var list []goPackage
	for _, name := range order {
		list = append(list, *all[name])
	}
	return list
}

func TestCheckImports(t *testing.T) {
	layers := testerr.Must(parseLayers(doc))(t)
	for name, c := range map[string]struct {
		imports [][2]string
		want    []string
	}{
		"down":             {[][2]string{{"cmd/x", "top"}, {"top", "middle"}, {"middle", "internal/b"}}, nil},
		"two rows down":    {[][2]string{{"top", "internal/a"}, {"top", ""}}, nil},
		"within a folder":  {[][2]string{{"middle/sub", "middle"}, {"middle", "middle/sub"}}, nil},
		"right in its row": {[][2]string{{"top", "beside"}, {"internal/a", "internal/b"}}, nil},
		"left in its row":  {[][2]string{{"internal/b", "internal/a"}}, []string{"internal/b imports internal/a, which is above it"}},
		"up":               {[][2]string{{"middle/sub", "top"}}, []string{"middle/sub imports top, which is above it"}},
		"up from the root": {[][2]string{{"", "cmd/x"}}, []string{". imports cmd/x, which is above it"}},
		"not sat on":       {[][2]string{{"top", "other"}}, []string{"top imports other, on which it does not sit"}},
		"not in the table": {[][2]string{{"lost", "middle"}}, []string{"no row of the table of folders has lost"}},
	} {
		if diff := cmp.Diff(c.want, checkImports(layers, pkgs(c.imports...))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	want := []string{"the table of folders has other, which holds no package"}
	without := pkgs()
	without = append(without[:6:6], without[7:]...)
	if diff := cmp.Diff(want, checkImports(layers, without)); diff != "" {
		t.Errorf("a folder without packages (-want +got):\n%s", diff)
	}
}

func TestParseLayersMalformed(t *testing.T) {
	const head = "| folder | is for | sits on |\n|---|---|---|\n"
	for text, want := range map[string]string{
		"nothing":                                   "no table of folders",
		head + "| `a/` | x |\n":                     "2 cells",
		head + "| a | x | — |\n":                    "no folder in backquotes",
		head + "| `a/` | x | b |\n":                 "in no row below",
		head + "| `b/` | x | — |\n| `a/` | x | b |": "in no row below",
	} {
		if _, err := parseLayers(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestCheckHeaders(t *testing.T) {
	for name, c := range map[string]struct {
		files, want []string
	}{
		"complete":      {[]string{"one.cuh", "two.cuh", "emu/a.h"}, nil},
		"a new header":  {[]string{"one.cuh", "two.cuh", "emu/a.h", "new.cuh"}, []string{"no row of the table of headers has devicecode/include/mscclgo/new.cuh"}},
		"one that left": {[]string{"one.cuh", "emu/a.h"}, []string{"the table of headers has two.cuh, which is not in devicecode/include/mscclgo"}},
	} {
		if diff := cmp.Diff(c.want, checkHeaders(doc, c.files)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestCheckCommands(t *testing.T) {
	root := fstest.MapFS{"a/b/x_test.go": {Data: []byte("package b\n\nfunc TestOne(t *testing.T) {}\nfunc BenchmarkTwo(b *testing.B) {}\n")}}
	for command, want := range map[string][]string{
		"go test -run 'One' ./a/b":            nil,
		"go test -run ^$ -bench Two ./a/b":    nil,
		"go test -run 'One|Three' ./a/b":      {"no test of a/b is called Three"},
		"go test -count=1 -run One ./missing": {"missing has no tests", "no test of missing is called One"},
		"go test -run One":                    {"names no package", "no test of  is called One"},
	} {
		var got []string
		for _, p := range checkCommands("see `"+command+"`.", root) {
			p = strings.TrimPrefix(p, "`"+command+"`")
			got = append(got, strings.TrimLeft(p, ": "))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", command, diff)
		}
	}
}
