package main

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

var (
	testCommand = regexp.MustCompile("`go test ([^`]*)`")
	testFunc    = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz|Example)\w*)\(`)
)

// checkCommands returns the commands "go test" of the document that would find no
// package, or for one of the alternatives of -run, -bench and -fuzz no test.
func checkCommands(text string, root fs.FS) []string {
	var problems []string
	for _, command := range testCommand.FindAllStringSubmatch(text, -1) {
		var patterns, packages []string
		args := strings.Fields(command[1])
		for i := 0; i < len(args); i++ {
			switch arg := args[i]; {
			case (arg == "-run" || arg == "-bench" || arg == "-fuzz") && i+1 < len(args):
				i++
				patterns = append(patterns, strings.Split(strings.Trim(args[i], "'"), "|")...)
			case strings.HasPrefix(arg, "./"):
				packages = append(packages, path.Clean(arg))
			}
		}
		if len(packages) == 0 {
			problems = append(problems, fmt.Sprintf("%s names no package", command[0]))
		}
		var tests []string
		for _, name := range packages {
			files, err := fs.Glob(root, path.Join(name, "*_test.go"))
			if err != nil || len(files) == 0 {
				problems = append(problems, fmt.Sprintf("%s: %s has no tests", command[0], name))
			}
			for _, file := range files {
				b, err := fs.ReadFile(root, file)
				if err != nil {
					problems = append(problems, fmt.Sprintf("%s: %v", command[0], err))
				}
				for _, match := range testFunc.FindAllStringSubmatch(string(b), -1) {
					tests = append(tests, match[1])
				}
			}
		}
		for _, pattern := range patterns {
			if pattern == "^$" { // no test on purpose
				continue
			}
			if !matchesAny(pattern, tests) {
				problems = append(problems, fmt.Sprintf("%s: no test of %s is called %s", command[0], strings.Join(packages, " "), pattern))
			}
		}
	}
	return problems
}

func matchesAny(pattern string, names []string) bool {
	r, err := regexp.Compile(pattern)
	for _, name := range names {
		if err == nil && r.MatchString(name) {
			return true
		}
	}
	return false
}
