// Layers checks docs/ARCHITECTURE.md against the module: that imports go down only
// in its table of folders, and that its table of headers is complete. It also checks that
// the tests which any document names exist. Run it in the root of the module.
//
// The table of folders has columns "folder", "is for" and "sits on". Its rows are in the
// order of the layers. A folder may import the folders that it sits on and the folders
// that these sit on. All of them are in rows below, or to the right of it in its own row.
// "all" stands for all rows below. Imports of tests do not count.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

const (
	document   = "docs/ARCHITECTURE.md"
	headerRoot = "devicecode/include/mscclgo"
)

func main() {
	problems, err := run()
	for _, p := range problems {
		fmt.Fprintln(os.Stderr, p)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "layers:", err)
	}
	if len(problems) > 0 || err != nil {
		os.Exit(1)
	}
}

// run returns what is wrong.
func run() ([]string, error) {
	text, err := os.ReadFile(document)
	if err != nil {
		return nil, err
	}
	layers, err := parseLayers(string(text))
	if err != nil {
		return nil, err
	}
	packages, err := listPackages()
	if err != nil {
		return nil, err
	}
	headers, err := listHeaders(os.DirFS(headerRoot))
	if err != nil {
		return nil, err
	}
	problems := in(document, slices.Concat(checkImports(layers, packages), checkHeaders(string(text), headers)))
	documents, err := filepath.Glob("docs/*.md")
	if err != nil {
		return nil, err
	}
	for _, name := range append(documents, "README.md", "CONTRIBUTING.md") {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		problems = append(problems, in(name, checkCommands(string(text), os.DirFS(".")))...)
	}
	return problems, nil
}

// in adds the document to its problems.
func in(name string, problems []string) []string {
	for i, p := range problems {
		problems[i] = name + ": " + p
	}
	return problems
}

// goPackage is what "go list -json" prints of a package.
type goPackage struct {
	ImportPath string
	Imports    []string // imports of tests are not among them
	Module     struct{ Path string }
}

// listPackages returns the packages of the module.
func listPackages() ([]goPackage, error) {
	list := exec.Command("go", "list", "-json=ImportPath,Imports,Module", "./...")
	list.Stderr = os.Stderr
	out, err := list.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := list.Start(); err != nil {
		return nil, err
	}
	var packages []goPackage
	for d := json.NewDecoder(out); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages, list.Wait()
		} else if err != nil {
			return nil, errors.Join(err, list.Wait())
		}
		packages = append(packages, p)
	}
}
