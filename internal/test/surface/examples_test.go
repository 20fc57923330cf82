package surface

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"testing"
)

// TestExamples looks for an example in the tests of every public package.
func TestExamples(t *testing.T) {
	for _, p := range list(t, module+"/...") {
		if p.public() && examples(t, p.dir) == 0 {
			t.Errorf("%s has no example", p.path)
		}
	}
	if examples(t, ".") > 0 {
		t.Error("an example was found here, where there is none")
	}
}

// examples counts the examples in a folder's tests.
func examples(t *testing.T, dir string) int {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, name := range names {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return len(doc.Examples(files...))
}
