// Package surface checks what the packages of this module offer to its importers.
package surface

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

const module = "github.com/mscclgo/mscclgo"

// pkg is what go list says of a package.
type pkg struct {
	path, name, dir, export string // export is the file of the compiler's export data
	files                   []string
}

func (p pkg) public() bool {
	return len(p.files) > 0 && p.name != "main" && p.path != library && !internal(p.path) && (p.path == module || strings.HasPrefix(p.path, module+"/"))
}

// library is the package whose API is C's.
const library = module + "/capi"

// internal reports whether the packages of other modules cannot import path.
func internal(path string) bool {
	return strings.Contains("/"+path+"/", "/internal/") && strings.HasPrefix(path, module)
}

// list returns the packages that match the patterns and the packages that they need.
func list(t *testing.T, patterns ...string) map[string]pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-export", "-deps", "-f",
		"{{.ImportPath}}\t{{.Name}}\t{{.Dir}}\t{{.Export}}\t{{join .GoFiles \" \"}} {{join .CgoFiles \" \"}}"}, patterns...)...)
	cmd.Stderr = os.Stderr
	out := testerr.Must(cmd.Output())(t)
	packages := map[string]pkg{}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if files := strings.Fields(f[4]); len(files) > 0 { // else it has tests only
			packages[f[0]] = pkg{f[0], f[1], f[2], f[3], files}
		}
	}
	return packages
}

func compiled(packages map[string]pkg) types.Importer {
	return importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(packages[path].export)
	})
}

// TestTypesCanBeNamed: nothing that is exported has a type of an internal package,
// which other modules cannot name and go doc does not show, but the results of methods Internal.
func TestTypesCanBeNamed(t *testing.T) {
	packages := list(t, module+"/...")
	load := compiled(packages)
	checked, names, fields := 0, 0, 0
	for _, p := range packages {
		if !p.public() {
			continue
		}
		loaded := testerr.Must(load.Import(p.path))(t)
		checked++
		n, f := size(loaded)
		names, fields = names+n, fields+f
		for _, hidden := range hiddenTypes(loaded) {
			t.Errorf("%s.%s", p.path, hidden)
		}
	}
	if checked < 10 {
		t.Errorf("%d packages are public", checked)
	}
	if t.Logf("%d exported names and %d fields", names, fields); names+fields > mostExported {
		t.Errorf("%d names and fields are exported, more than %d; is each for users?", names+fields, mostExported)
	}
}

// mostExported bounds the exported names and fields of all packages together: a reader has to hold them.
const mostExported = 976

// size counts the exported names of a package, with methods, and the exported fields of its structs.
func size(p *types.Package) (names, fields int) {
	for _, name := range p.Scope().Names() {
		o := p.Scope().Lookup(name)
		if !o.Exported() {
			continue
		}
		names++
		declared, ok := o.Type().(*types.Named)
		if _, isType := o.(*types.TypeName); !isType || !ok {
			continue
		}
		for m := range declared.Methods() {
			if m.Exported() {
				names++
			}
		}
		switch u := declared.Underlying().(type) {
		case *types.Interface:
			for m := range u.ExplicitMethods() {
				if m.Exported() {
					names++
				}
			}
		case *types.Struct:
			for f := range u.Fields() {
				if f.Exported() {
					fields++
				}
			}
		}
	}
	return names, fields
}

// hiddenTypes names the types of internal packages in the exported names of a package.
func hiddenTypes(p *types.Package) (found []string) {
	for _, name := range p.Scope().Names() {
		o := p.Scope().Lookup(name)
		if !o.Exported() {
			continue
		}
		report := func(what string, t types.Type) {
			mentioned(t, func(hidden string) { found = append(found, what+" has type "+hidden) })
		}
		declared, ok := o.(*types.TypeName)
		if !ok {
			report(name, o.Type())
			continue
		}
		if declared.IsAlias() {
			report(name, types.Unalias(o.Type()))
			continue
		}
		report(name, o.Type().Underlying())
		methods := types.NewMethodSet(types.NewPointer(o.Type()))
		if types.IsInterface(o.Type()) {
			methods = types.NewMethodSet(o.Type())
		}
		for m := range methods.Methods() {
			if m.Obj().Exported() && !isInside(o.Type(), m) {
				report(name+"."+m.Obj().Name(), m.Type())
			}
		}
	}
	return found
}

// isInside reports whether a method is the one by which packages of this module reach what users do not see.
func isInside(of types.Type, m *types.Selection) bool {
	f := m.Type().(*types.Signature)
	if m.Obj().Name() != "Internal" || types.IsInterface(of) || f.Params().Len() > 0 || f.Results().Len() != 1 {
		return false
	}
	result, ok := f.Results().At(0).Type().(*types.Named)
	return ok && internal(result.Obj().Pkg().Path())
}

// mentioned calls found with every type of an internal package that t is made of, as
// far as an importer sees it.
func mentioned(t types.Type, found func(string)) {
	tuple := func(vars *types.Tuple) {
		for v := range vars.Variables() {
			mentioned(v.Type(), found)
		}
	}
	arguments := func(list *types.TypeList) {
		for a := range list.Types() {
			mentioned(a, found)
		}
	}
	switch t := t.(type) {
	case *types.Named:
		if p := t.Obj().Pkg(); p != nil && internal(p.Path()) {
			found(t.String())
		}
		arguments(t.TypeArgs())
	case *types.Alias:
		mentioned(types.Unalias(t), found)
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() {
				mentioned(f.Type(), found)
			}
		}
	case *types.Interface:
		for m := range t.ExplicitMethods() {
			if m.Exported() {
				mentioned(m.Type(), found)
			}
		}
		for e := range t.EmbeddedTypes() {
			mentioned(e, found)
		}
	case *types.Signature:
		for p := range t.TypeParams().TypeParams() {
			mentioned(p.Constraint(), found)
		}
		tuple(t.Params())
		tuple(t.Results())
	case *types.Map:
		mentioned(t.Key(), found)
		mentioned(t.Elem(), found)
	case *types.Union:
		for term := range t.Terms() {
			mentioned(term.Type(), found)
		}
	case interface{ Elem() types.Type }: // pointer, slice, array, channel
		mentioned(t.Elem(), found)
	}
}

// TestHiddenTypes finds them in every place that they can be in.
func TestHiddenTypes(t *testing.T) {
	const hidden = "package h; type T int; func (T) Exported() {}"
	const source = `package p
import "` + module + `/x/internal/h"
type (
	Alias = h.T
	Field struct{ F, private h.T; Good int; also []h.T }
	Pointer struct{ F *h.T }
	Embedded struct{ h.T }
	Interface interface{ M(h.T); private() h.T }
	Embeds interface{ I }
	I = interface{ M() h.T }
	Good struct{ f h.T }
	private struct{ F h.T }
	Generic[P any] struct{ F map[string]P }
	Instance struct{ F Generic[h.T] }
	Inside struct{}
	Takes struct{}
	Several struct{}
	User interface{ Internal() h.T }
)
func (*Inside) Internal() h.T { return 0 }
func (Takes) Internal(int) h.T { return 0 }
func (Several) Internal() (h.T, int) { return 0, 0 }
func (Good) Method(...h.T) {}
func (Good) private(h.T) {}
func Func(func(chan h.T)) {}
func Constrained[P ~[]h.T](P) {}
var Var [2]h.T
const Const = h.T(1)
var private1 h.T
`
	fset := token.NewFileSet()
	checkSource := func(path, text string, i types.Importer) *types.Package {
		f := testerr.Must(parser.ParseFile(fset, path, text, 0))(t)
		return testerr.Must((&types.Config{Importer: i}).Check(path, fset, []*ast.File{f}, nil))(t)
	}
	h := checkSource(module+"/x/internal/h", hidden, nil)
	p := checkSource(module+"/x/p", source, only{h})
	var got []string
	for _, line := range hiddenTypes(p) {
		name, _, _ := strings.Cut(line, " ")
		got = append(got, name)
	}
	want := []string{"Alias", "Const", "Constrained", "Embedded", "Embeds", "Embeds.M", "Field", "Func", "Good.Method", "I", "Instance", "Interface", "Interface.M", "Pointer", "Several.Internal", "Takes.Internal", "User", "User.Internal", "Var"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

// only imports one package.
type only struct{ p *types.Package }

func (o only) Import(path string) (*types.Package, error) { return o.p, nil }

// TestDocumented wants a doc comment for every exported name, or for the group that declares it. All methods
// Internal have the same comment.
func TestDocumented(t *testing.T) {
	for _, p := range list(t, module+"/...") {
		if !p.public() {
			continue
		}
		fset := token.NewFileSet()
		var files []*ast.File
		for _, name := range p.files {
			f := testerr.Must(parser.ParseFile(fset, filepath.Join(p.dir, name), nil, parser.ParseComments))(t)
			files = append(files, f)
		}
		d := testerr.Must(doc.NewFromFiles(fset, files, p.path))(t)
		for _, name := range undocumented(d) {
			t.Errorf("%s has no doc comment, or not the comment of its like", strings.TrimSuffix(p.path+"."+name, "."))
		}
	}
}

// undocumented names the exported declarations without a comment; "" is the package.
func undocumented(d *doc.Package) (names []string) {
	check := func(name, text string) {
		if strings.TrimSpace(text) == "" {
			names = append(names, name)
		}
	}
	values := func(groups []*doc.Value) {
		for _, g := range groups {
			for _, s := range g.Decl.Specs {
				v := s.(*ast.ValueSpec)
				check(fmt.Sprint(v.Names), g.Doc+v.Doc.Text()+v.Comment.Text())
			}
		}
	}
	functions := func(of string, list []*doc.Func) {
		for _, f := range list {
			if f.Name == "Internal" && f.Doc != "Internal is for packages of this module.\n" {
				f.Doc = ""
			}
			check(of+f.Name, f.Doc)
		}
	}
	check("", d.Doc)
	values(d.Consts)
	values(d.Vars)
	functions("", d.Funcs)
	for _, t := range d.Types {
		check(t.Name, t.Doc)
		values(t.Consts)
		values(t.Vars)
		functions("", t.Funcs)
		functions(t.Name+".", t.Methods)
	}
	return names
}
