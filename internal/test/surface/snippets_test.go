package surface

import (
	"context"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// section is the Go snippets of a section of a document, which follow each other.
type section struct {
	name     string
	snippets []string
}

var fences = regexp.MustCompile("(?ms)^## ([^\n]*)$|^```go\n(.*?)^```$")

// TestSnippets runs the Go snippets of the documents as a reader would who adds nothing: an error of a call is
// one of the program, and nothing is closed. All are one program, run over each transport.
func TestSnippets(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("there is no go command")
	}
	root, folder := filepath.Join("..", "..", ".."), t.TempDir()
	documents := testerr.Must(filepath.Glob(filepath.Join(root, "docs", "*.md")))(t)
	var all []section
	for _, document := range append(documents, filepath.Join(root, "README.md")) {
		all = append(all, sections(document, read(t, document))...)
	}
	bundle := testerr.Must(devicecode.CompileBundle(t.Context(), []string{"emu"}, "hello.cu", read(t, root, "samples/hello/hello.cu"), devicecode.Options{}))(t)
	program := testerr.Must(assemble(all))(t)
	args := []string{"build", "-buildvcs=false", "-o", filepath.Join(folder, "program")}
	for name, content := range map[string][]byte{
		"hello.cu":       read(t, root, "samples/hello/hello.cu"),
		"kernels.cu":     read(t, root, "samples/typed/kernels.cu"),
		"kernels.go":     read(t, root, "samples/typed/kernels.go"),
		"main.go":        read(t, "testdata/snippets.go.txt"),
		"kernels.bundle": bundle.Bytes(),
		"snippets.go":    program,
	} {
		path := filepath.Join(folder, name)
		testerr.Check(t, os.WriteFile(path, content, 0o600))
		if filepath.Ext(name) == ".go" {
			args = append(args, path)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, program)
	}
	run := func(t *testing.T, transports string, args ...string) string {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(folder, "program"), args...)
		cmd.Env = append(os.Environ(), "MSCCLGO_DEVICE=emu", "MSCCLGO_TRANSPORTS="+transports)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return string(out)
	}
	for _, transports := range []string{"cudaipc", "shm", "ethernet", "cudaipc,shm,ethernet"} {
		t.Run(transports, func(t *testing.T) {
			out := run(t, transports)
			if n := strings.Count(out, "ran: GUIDE.md, Collectives"); n != 4 {
				t.Errorf("%d of 4 ranks ran the collectives", n)
			}
			if mapped := strings.Contains(transports, "cudaipc"); mapped && strings.Contains(out, "no memory is mapped") {
				t.Error(out)
			}
		})
	}
	t.Run("alone", func(t *testing.T) { run(t, "", "alone") })
}

func read(t *testing.T, path ...string) []byte {
	t.Helper()
	return testerr.Must(os.ReadFile(filepath.Join(path...)))(t)
}

// sections returns the sections of a document that have Go snippets.
func sections(path string, text []byte) (all []section) {
	name := filepath.Base(path)
	last := section{name: name}
	for _, m := range append(fences.FindAllStringSubmatch(string(text), -1), []string{"", "the end", ""}) {
		if m[1] == "" {
			last.snippets = append(last.snippets, m[2])
			continue
		}
		if len(last.snippets) > 0 {
			all = append(all, last)
		}
		last = section{name: name + ", " + m[1]}
	}
	return all
}

// assemble returns a file of the program: a function for each section. A snippet has what lies before it in its
// section. Declarations, up to an empty line, are the file's, and what precedes a line of three dots is that
// of main. A section that runs ranks in its own process is run without others.
func assemble(all []section) ([]byte, error) {
	var table, start, alone, declared, functions strings.Builder
	for i, s := range all {
		var text strings.Builder
		for _, snippet := range s.snippets {
			if before, after, ok := strings.Cut(snippet, "\n...\n"); ok {
				start.WriteString(before + "\n")
				snippet = after
			}
			if strings.HasPrefix(snippet, "//go:embed") {
				declaration, rest, _ := strings.Cut(snippet, "\n\n")
				declared.WriteString(declaration + "\n")
				snippet = rest
			}
			text.WriteString(snippet)
		}
		checked, err := check(text.String())
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", s.name, err)
		case strings.Contains(text.String(), "communicator.Local("):
			alone.WriteString(checked)
		default:
			fmt.Fprintf(&table, "{%q, section%d},\n", s.name, i)
			fmt.Fprintf(&functions, "func section%d(ctx context.Context) (err error) {\n%s\nreturn err\n}\n", i, checked)
		}
	}
	begin, err := check(start.String())
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, `package main
import (
	"context"
	_ "embed"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/launcher"
)
%s
var sections = []section{
%s}
func start(ctx context.Context) (err error) {
%s
return err
}
func alone(ctx context.Context) (err error) {
%s
return err
}
%s`, declared.String(), table.String(), begin, alone.String(), functions.String()), nil
}

// check returns statements of a function whose result is err, which returns each error that they assign.
func check(statements string) (string, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", "package p\nfunc f() {\n"+statements+"\n}", parser.SkipObjectResolution)
	if err != nil {
		return "", err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		block, ok := n.(*ast.BlockStmt)
		if !ok {
			return true
		}
		var list []ast.Stmt
		for _, s := range block.List {
			list = append(list, s)
			if a, ok := s.(*ast.AssignStmt); ok {
				list = append(list, uses(a)...)
			}
		}
		block.List = list
		return true
	})
	var b strings.Builder
	for _, s := range file.Decls[0].(*ast.FuncDecl).Body.List {
		if err := format.Node(&b, files, s); err != nil {
			return "", err
		}
		b.WriteByte('\n')
	}
	return b.String(), nil
}

// uses returns what is behind an assignment: a use of what it defines, and a return if err is not nil.
func uses(a *ast.AssignStmt) (list []ast.Stmt) {
	isErr := func(e ast.Expr) bool { id, ok := e.(*ast.Ident); return ok && id.Name == "err" }
	for _, e := range a.Lhs {
		if a.Tok == token.DEFINE && !isErr(e) {
			list = append(list, &ast.AssignStmt{Lhs: []ast.Expr{ast.NewIdent("_")}, Tok: token.ASSIGN, Rhs: []ast.Expr{e}})
		}
	}
	if !slices.ContainsFunc(a.Lhs, isErr) {
		return list
	}
	if len(a.Lhs) == 1 {
		a.Tok = token.ASSIGN // it is the function's
	}
	return append(list, &ast.IfStmt{
		Cond: &ast.BinaryExpr{X: ast.NewIdent("err"), Op: token.NEQ, Y: ast.NewIdent("nil")},
		Body: &ast.BlockStmt{List: []ast.Stmt{&ast.ReturnStmt{Results: []ast.Expr{ast.NewIdent("err")}}}},
	})
}
