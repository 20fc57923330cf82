// Layers checks docs/ARCHITECTURE.md against the module: that imports go down only
// in its table of folders, that its table of headers is complete, and that the tests
// which it names exist. Run it in the root of the module.
//
// The table of folders has columns "folder", "is for" and "sits on". Its order is
// that of the layers. A folder may import the folders that it sits on and those that
// they sit on, all of which are in rows below, and folders to the right of it in its
// own row. "all" stands for all rows below. Imports of tests do not count.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
)

const (
	document   = "docs/ARCHITECTURE.md"
	headerRoot = "devicecode/include/mscclgo"
)

func main() {
	problems, err := run()
	for _, p := range problems {
		fmt.Fprintf(os.Stderr, "%s: %s\n", document, p)
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
	return slices.Concat(
		checkImports(layers, packages),
		checkHeaders(string(text), headers),
		checkCommands(string(text), os.DirFS(".")),
	), nil
}

// goPackage is what "go list -json" prints of a package.
type goPackage struct {
	ImportPath string
	Imports    []string // those of tests are not among them
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
