package main

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// listHeaders returns the files of the folder of headers.
func listHeaders(root fs.FS) ([]string, error) {
	var files []string
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, name)
		}
		return err
	})
	return files, err
}

// checkHeaders returns the headers that are not in the table of headers, and its rows
// that are of no header. A row that ends with a slash is of a folder.
func checkHeaders(text string, files []string) []string {
	var problems []string
	var names []string
	for _, cells := range table(text, "header") {
		for _, name := range quoted.FindAllStringSubmatch(cells[0], -1) {
			names = append(names, name[1])
		}
	}
	covers := func(name, file string) bool {
		return name == file || strings.HasSuffix(name, "/") && strings.HasPrefix(file, name)
	}
	for _, file := range files {
		if !slices.ContainsFunc(names, func(name string) bool { return covers(name, file) }) {
			problems = append(problems, fmt.Sprintf("no row of the table of headers has %s", path.Join(headerRoot, file)))
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(files, func(file string) bool { return covers(name, file) }) {
			problems = append(problems, fmt.Sprintf("the table of headers has %s, which is not in %s", name, headerRoot))
		}
	}
	return problems
}
