package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strings"
)

// An operator changes a line at the first match of a pattern; replacement is as of Expand.
type operator struct {
	pattern     *regexp.Regexp
	replacement string
}

func op(pattern, replacement string) operator {
	return operator{regexp.MustCompile(pattern), replacement}
}

var operators = []operator{
	op(` == `, " != "), op(` != `, " == "), op(` < `, " <= "), op(` <= `, " < "), op(` > `, " >= "), op(` >= `, " > "),
	op(` && `, " || "), op(` \|\| `, " && "), op(`( ?)\+( ?)1\b`, "$1-${2}1"), op(`( ?)-( ?)1\b`, "$1+${2}1"),
	op(` \+= `, " -= "), op(`(return .*)\berr$`, "${1}nil"), op(`\btrue\b`, "false"), op(`\bfalse\b`, "true"),
	op(`^[\w.]+\(.*\);?$`, ""), op(`^(if|for) ([^;]*) \{$`, "$1 !($2) {"), op(`^if ([^;]*; )(.*) \{$`, "if $1!($2) {"),
	op(`^if \((.*)\)( \{)?$`, "if (!($1))$2"), op(`\b0\b`, "1"), op(`([ (+-])[1-9]\d*\b`, "${1}0"), op(`^break\b`, "continue"),
	op(`^continue\b`, "break"), op(`^return(;?)$`, "$1"), op(`^[\w.]+ = (nil|true|false|0);?$`, ""), op(`^(\w+)(\+\+|--)(;?)$`, "$3"),
}

var (
	texts = regexp.MustCompile(`(?i)errorf|printf|errors\.|log|trace|panic|explain|describe|text|message|runtime\.keepalive`)
	names = regexp.MustCompile(`(?i)string$|error$|text|trace|describe|format`)
)

// generate prints the areas of t and n faults, as many of each area, that compile and are
// in functions of their own.
func generate(ctx context.Context, t table, seed uint64, n int) error {
	r := rand.New(rand.NewPCG(seed, 0))
	number := 0
	for _, a := range t.areas {
		fmt.Println("area", a.name, strings.Join(a.packages, " "), ":", strings.Join(a.tests, " "))
	}
	for i, a := range t.areas {
		var files []string
		for _, p := range a.packages {
			files = append(files, sources(p)...)
		}
		used := map[string]bool{}
		for tries := 0; number < n*(i+1)/len(t.areas); tries++ {
			if tries > 100*n {
				return fmt.Errorf("area %s has too few lines for faults", a.name)
			}
			file := files[r.IntN(len(files))]
			text, err := os.ReadFile(file)
			check(err)
			f, ok := pick(r, file, string(text))
			if !ok || used[f.file+f.function] || !compiles(ctx, f) {
				continue
			}
			used[f.file+f.function] = true
			number++
			fmt.Printf("\n%d %s %s\n- %s\n", number, f.file, f.function, f.old)
			fmt.Println(strings.TrimSpace("+ " + f.new))
		}
	}
	return ctx.Err()
}

// sources returns the files of a package that are compiled here, but no tests.
func sources(p string) (files []string) {
	out, err := exec.Command("go", "list", "-f", `{{join .GoFiles " "}} {{join .CgoFiles " "}} {{join .CFiles " "}}`, "./"+p).Output()
	check(err)
	for _, name := range strings.Fields(string(out)) {
		if name != "explored.go" && !strings.HasPrefix(name, "trace") { // no subjects of the tests
			files = append(files, path.Join(p, name))
		}
	}
	return files
}

// pick returns a fault of an operator that is as likely as the others of the file.
func pick(r *rand.Rand, file, text string) (fault, bool) {
	if strings.Contains(text, "// Code generated") {
		return fault{}, false
	}
	lines, code := strings.Split(text, "\n"), strings.Split(mask(text), "\n")
	in := functions(lines)
	for _, o := range r.Perm(len(operators)) {
		for _, i := range r.Perm(len(lines)) {
			old, masked := strings.TrimSpace(lines[i]), strings.TrimSpace(code[i])
			at := operators[o].pattern.FindStringSubmatchIndex(masked)
			if in[i] == "" || at == nil || len(old) != len(masked) || texts.MatchString(old) || names.MatchString(in[i]) {
				continue
			}
			changed := operators[o].pattern.ExpandString([]byte(old[:at[0]]), operators[o].replacement, old, at)
			f := fault{file: file, function: in[i], old: old, new: string(changed) + old[at[1]:]}
			if _, err := f.apply(text); err == nil {
				return f, true
			}
		}
	}
	return fault{}, false
}

var quoted = regexp.MustCompile("(?s)//[^\n]*|/\\*.*?\\*/|`[^`]*`|\"(?:\\\\.|[^\"\\\\\n])*\"|'(?:\\\\.|[^'\\\\\n])+'")

// mask replaces comments, strings and characters by marks of the same length.
func mask(text string) string {
	return quoted.ReplaceAllStringFunc(text, func(s string) string {
		return strings.Map(func(c rune) rune {
			if c == '\n' {
				return c
			}
			return '"'
		}, s)
	})
}

func compiles(ctx context.Context, f fault) bool {
	dir, env, err := overlay(f)
	if err != nil {
		return false
	}
	defer os.RemoveAll(dir)
	cmd := exec.CommandContext(ctx, "go", "build", "./"+path.Dir(f.file))
	cmd.Env = env
	return cmd.Run() == nil
}
