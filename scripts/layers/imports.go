package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// layer is a folder of the table, in the order of the table.
type layer struct {
	folder string // without a slash at the end; "" is the root
	row    int
	may    map[int]bool // rows that it may import
}

var quoted = regexp.MustCompile("`([^`]+)`")

// table returns the cells of the rows of the Markdown table whose header begins with
// the given cells.
func table(text string, header ...string) [][]string {
	var rows [][]string
	inside := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			inside = false
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case len(cells) >= len(header) && slices.Equal(cells[:len(header)], header):
			inside = true
		case inside && strings.Trim(strings.Join(cells, ""), "-: ") != "":
			rows = append(rows, cells)
		}
	}
	return rows
}

// parseLayers reads the table of folders.
func parseLayers(text string) ([]layer, error) {
	rows := table(text, "folder", "is for", "sits on")
	if len(rows) == 0 {
		return nil, fmt.Errorf("%s has no table of folders", document)
	}
	var layers []layer
	for row, cells := range rows {
		if len(cells) != 3 {
			return nil, fmt.Errorf("the row of %s has %d cells", cells[0], len(cells))
		}
		names := quoted.FindAllStringSubmatch(cells[0], -1)
		if names == nil {
			return nil, fmt.Errorf("the row of %s names no folder in backquotes", cells[0])
		}
		for _, name := range names {
			layers = append(layers, layer{folder: folder(name[1]), row: row, may: map[int]bool{}})
		}
	}
	// From below, so that what a row sits on is complete.
	for row := len(rows) - 1; row >= 0; row-- {
		may, err := below(layers, row, rows[row][2])
		if err != nil {
			return nil, err
		}
		for _, l := range layers {
			if l.row == row {
				for other := range may {
					l.may[other] = true
				}
			}
		}
	}
	return layers, nil
}

// folder returns the name in the table of a folder, without what is for readers.
func folder(name string) string {
	name = strings.TrimSuffix(name, "/")
	if name == "." {
		return ""
	}
	return name
}

// shown returns the name of a folder for people, the reverse of folder.
func shown(name string) string {
	if name == "" {
		return "."
	}
	return name
}

// below returns the rows that a row may import, by its cell "sits on".
func below(layers []layer, row int, cell string) (map[int]bool, error) {
	may := map[int]bool{}
	if cell == "—" {
		return may, nil
	}
	for name := range strings.SplitSeq(cell, ",") {
		name = folder(strings.Trim(strings.TrimSpace(name), "`"))
		found := false
		for _, l := range layers {
			if l.row > row && (name == "all" || l.folder == name || strings.HasPrefix(l.folder, name+"/") && name != "") {
				found = true
				may[l.row] = true
				for other := range l.may {
					may[other] = true
				}
			}
		}
		if !found {
			return nil, fmt.Errorf("row %d sits on %q, which is in no row below", row+1, name)
		}
	}
	return may, nil
}

// find returns the layer of a folder: that with the longest name that holds it.
func find(layers []layer, name string) (at int, ok bool) {
	for i, l := range layers {
		holds := l.folder == name || l.folder != "" && strings.HasPrefix(name, l.folder+"/")
		if holds && (!ok || len(l.folder) > len(layers[at].folder)) {
			at, ok = i, true
		}
	}
	return at, ok
}

// checkImports returns the imports within the module that the table does not allow,
// and the packages and folders that only one of the two has.
func checkImports(layers []layer, packages []goPackage) []string {
	var problems []string
	used := make([]bool, len(layers))
	for _, p := range packages {
		local := func(path string) (name string, ok bool) {
			if path == p.Module.Path {
				return "", true
			}
			return strings.CutPrefix(path, p.Module.Path+"/")
		}
		name, _ := local(p.ImportPath)
		from, ok := find(layers, name)
		if !ok {
			problems = append(problems, fmt.Sprintf("no row of the table of folders has %s", shown(name)))
			continue
		}
		used[from] = true
		for _, path := range p.Imports {
			imported, ok := local(path)
			if !ok {
				continue
			}
			to, ok := find(layers, imported)
			if !ok || to == from {
				continue // reported as a package, or within a folder
			}
			switch {
			case to < from:
				problems = append(problems, fmt.Sprintf("%s imports %s, which is above it", shown(name), shown(imported)))
			case layers[to].row != layers[from].row && !layers[from].may[layers[to].row]:
				problems = append(problems, fmt.Sprintf("%s imports %s, on which it does not sit", shown(name), shown(imported)))
			}
		}
	}
	for i, l := range layers {
		if !used[i] {
			problems = append(problems, fmt.Sprintf("the table of folders has %s, which holds no package", shown(l.folder)))
		}
	}
	return problems
}
