package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

type runner struct {
	long, quick bool
	timeout     time.Duration
}

// overlay makes a folder with the fault's file, and returns the environment in which the
// go command compiles that. Programs that tests compile have the fault, too.
func overlay(f fault) (dir string, env []string, err error) {
	source, _ := os.ReadFile(f.file) // gone if the file is
	text, err := f.apply(string(source))
	if err != nil {
		return "", nil, err
	}
	dir, err = os.MkdirTemp("", "mutant")
	check(err)
	file, err := filepath.Abs(f.file)
	check(err)
	name, list := filepath.Join(dir, path.Base(file)), filepath.Join(dir, "overlay.json")
	data, err := json.Marshal(map[string]map[string]string{"Replace": {file: name}})
	check(errors.Join(err, os.WriteFile(name, []byte(text), 0o666), os.WriteFile(list, data, 0o666)))
	flags, err := exec.Command("go", "env", "GOFLAGS").Output()
	check(err)
	return dir, append(os.Environ(), "GOFLAGS="+strings.TrimSpace(string(flags))+" -overlay="+list), nil
}

// run returns "found by PACKAGE TEST ...", "SURVIVED ...", "gone: ...", "skipped: ..." or
// "broken: ...".
func (r runner) run(ctx context.Context, t table, f fault) string {
	dir, env, err := overlay(f)
	if err != nil {
		return "gone: " + err.Error()
	}
	defer os.RemoveAll(dir)
	own := "./" + path.Dir(f.file)
	start := time.Now()
	found := func(p, how string) string {
		if strings.HasPrefix(how, "broken") {
			return how
		}
		return fmt.Sprintf("found by %s %s, %.0f s", p, how, time.Since(start).Seconds())
	}
	if f.finders != nil {
		p, pattern := f.finders[0], f.finders[1]
		if how := r.test(ctx, env, append(r.flags(), "-run", pattern, p)); how != "" {
			return found(p, how)
		}
	}
	if r.quick {
		return "skipped: no tests are named for it, or they do not find it"
	}
	tests := []string{own}
	for _, a := range t.areas {
		if a.name == f.area {
			tests = slices.Compact(append(tests, a.tests...))
		}
	}
	if own == "./connection/ib" {
		tests = []string{own, "vm"}
	}
	for _, p := range tests {
		flags := r.flags()
		if p == "vm" {
			if _, err := os.Stat("build/vm/initrd"); err != nil {
				return "skipped: the tests in the virtual machine would look for it, and build/vm is missing (make test-rdma builds it)"
			}
			root, _ := os.Getwd()
			env = append(env, fmt.Sprintf("MSCCLGO_VM_SECONDS=%d", int(r.timeout.Seconds())))
			flags, p = append(flags, "-exec", root+"/scripts/vm/run"), own
		}
		if how := r.test(ctx, env, append(flags, p)); how != "" {
			return found(p, how)
		}
	}
	return fmt.Sprintf("SURVIVED %s, %.0f s", strings.Join(tests, " "), time.Since(start).Seconds())
}

// flags returns go test's.
func (r runner) flags() []string {
	flags := []string{"test", "-json", "-vet=off", "-count=1", "-failfast", "-timeout", r.timeout.String()}
	if !r.long {
		flags = append(flags, "-short")
	}
	return flags
}

// test returns the first test that fails or hangs, or "" if all pass.
func (r runner) test(ctx context.Context, env, args []string) string {
	// The go command ends a test that is late; this is for where it does not.
	ctx, cancel := context.WithTimeout(ctx, r.timeout+10*time.Minute)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env, cmd.Stdout, cmd.WaitDelay = env, &out, 10*time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err := cmd.Run()
	if cmd.Process == nil {
		return "broken: " + err.Error()
	}
	syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what the tests left running
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return ""
	}
	return failed(out.Bytes())
}

// failed returns the first test that failed by what "go test -json" wrote.
func failed(out []byte) string {
	var running []string
	for line := range bytes.Lines(out) {
		var e struct{ Action, Test, FailedBuild string }
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		switch {
		case e.FailedBuild != "":
			return "broken: it does not compile"
		case e.Action == "run":
			running = append(running, e.Test)
		case e.Action == "fail" && e.Test != "" && !bytes.Contains(out, []byte("panic: test timed out")):
			return e.Test
		case e.Action == "pass" || e.Action == "skip":
			running = slices.DeleteFunc(running, func(t string) bool { return t == e.Test })
		}
	}
	if len(running) > 0 {
		return running[len(running)-1] + " (hangs or ends the process)"
	}
	return "(no test: the process fails)"
}
