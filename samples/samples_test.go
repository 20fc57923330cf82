// Package samples_test holds the samples to what they promise: that they can be copied.
package samples_test

import (
	"bytes"
	"context"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

const module = "github.com/mscclgo/mscclgo"

// sources returns the files of each sample without its tests, by the sample's name.
func sources(t *testing.T) map[string][]string {
	t.Helper()
	files := testerr.Must(filepath.Glob("*/*"))(t)
	byName := map[string][]string{}
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") {
			byName[filepath.Dir(file)] = append(byName[filepath.Dir(file)], file)
		}
	}
	if len(byName) == 0 {
		t.Skip("the sources are not here")
	}
	return byName
}

// TestPublic checks that samples import no internal package.
func TestPublic(t *testing.T) {
	for _, files := range sources(t) {
		for _, file := range files {
			if !strings.HasSuffix(file, ".go") {
				continue
			}
			parsed := testerr.Must(parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly))(t)
			for _, spec := range parsed.Imports {
				path := testerr.Must(strconv.Unquote(spec.Path.Value))(t)
				if strings.Contains(path+"/", "/internal/") {
					t.Errorf("%s imports %s", file, path)
				}
			}
		}
	}
}

// TestHelloLines holds the smallest program, an all-reduce of one's own with its kernel, to 90
// lines.
func TestHelloLines(t *testing.T) {
	const most = 90
	lines := 0
	for _, file := range sources(t)["hello"] {
		text := testerr.Must(os.ReadFile(file))(t)
		lines += bytes.Count(text, []byte("\n"))
	}
	if lines == 0 || lines > most {
		t.Errorf("%d lines, want at most %d", lines, most)
	}
}

// user is a module of somebody else's, which requires this one.
type user struct {
	t   *testing.T
	dir string
}

// newUser makes a module with this tree in the place of what it would download. What
// else it needs is in the module cache, since this tree's tests need it too.
func newUser(t *testing.T) *user {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("there is no go command")
	}
	root := testerr.Must(filepath.Abs(".."))(t)
	u := &user{t, t.TempDir()}
	u.write("go.mod", []byte("module example.com/user\n\ngo 1.26.0\n\nrequire "+module+" v0.0.0\n\nreplace "+module+" => "+root+"\n"))
	return u
}

func (u *user) write(name string, text []byte) {
	u.t.Helper()
	if err := os.WriteFile(filepath.Join(u.dir, name), text, 0o666); err != nil {
		u.t.Fatal(err)
	}
}

// copy copies files of a sample into a folder of the module.
func (u *user) copy(folder string, files []string) {
	u.t.Helper()
	if err := os.Mkdir(filepath.Join(u.dir, folder), 0o777); err != nil {
		u.t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			u.t.Fatal(err)
		}
		u.write(filepath.Join(folder, filepath.Base(file)), text)
	}
}

// run runs a program in the module's folder and returns what it prints.
func (u *user) run(program string, args ...string) string {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = u.dir
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOPROXY=off", "GOSUMDB=off", "GOWORK=off", "MSCCLGO_DEVICE=emu")
	out, err := cmd.CombinedOutput()
	if err != nil {
		u.t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestCopies compiles the samples, unchanged, in a module of somebody else's, and runs hello there.
func TestCopies(t *testing.T) {
	u := newUser(t)
	for name, files := range sources(t) {
		u.copy(name, files)
	}
	u.run("go", "get", "./...")
	u.run("go", "build", "-buildvcs=false", "./...") // compiles them, and links none
	u.run("go", "build", "-buildvcs=false", "-o", "sample", "./hello")
	out := u.run(filepath.Join(u.dir, "sample"), "-n", "3")
	var found []string
	for line := range strings.Lines(out) {
		if _, text, ok := strings.Cut(line, ": "); ok {
			found = append(found, strings.TrimSpace(text))
		}
	}
	want := slices.Repeat([]string{"the sums of 1000 elements are right"}, 3)
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("hello printed %q (-want +got):\n%s", out, diff)
	}
}

// TestCommand builds the command from a module that knows what package communicator
// needs, and no more.
func TestCommand(t *testing.T) {
	u := newUser(t)
	u.copy("hello", sources(t)["hello"])
	u.run("go", "get", "./...")
	u.run("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", "mscclgo", module+"/cmd/mscclgo")
	if out := u.run(filepath.Join(u.dir, "mscclgo"), "version"); !strings.HasPrefix(out, "mscclgo ") {
		t.Errorf("its version is %q", out)
	}
}
