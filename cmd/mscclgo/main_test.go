package main

import (
	"bytes"
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	root "github.com/mscclgo/mscclgo"

	"github.com/mscclgo/mscclgo/gpu"
)

func try(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = dispatch(args, strings.NewReader("input"), &out, &errs)
	return code, out.String(), errs.String()
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args           string
		code           int
		stdout, stderr string // what they have to contain; "" means empty
	}{
		{"", exitUsage, "", "usage: mscclgo COMMAND"},
		{"--version", exitOK, "mscclgo v", ""},
		{"help", exitOK, "usage: mscclgo COMMAND", ""},
		{"-h", exitOK, "usage: mscclgo COMMAND", ""},
		{"--help", exitOK, "usage: mscclgo COMMAND", ""},
		{"help run", exitOK, "usage: mscclgo run -n N", ""},
		{"run -h", exitOK, "-grace duration", ""},
		{"help nothing", exitUsage, "", `no command "nothing"`},
		{"help run version", exitUsage, "", "one command"},
		{"nothing", exitUsage, "", `no command "nothing"`},
		{"version", exitOK, "mscclgo ", ""},
		{"version -x", exitUsage, "", "not defined: -x"},
		{"version now", exitUsage, "", "takes no argument"},
		{"run true", exitUsage, "", "how many ranks"},
		{"run -n 0 true", exitUsage, "", "how many ranks"},
		{"run -n many true", exitUsage, "", "invalid value"},
		{"run -n 1", exitUsage, "", "which program"},
		{"run -n 1 -grace 0s true", exitUsage, "", "-grace"},
		{"run -n 1 -- mscclgo-no-such-program", 127, "", "not found"},
	} {
		code, stdout, stderr := try(strings.Fields(c.args)...)
		if code != c.code {
			t.Errorf("%q: code %d, want %d", c.args, code, c.code)
		}
		if !strings.Contains(stdout, c.stdout) || (c.stdout == "" && stdout != "") {
			t.Errorf("%q: standard output %q, want %q", c.args, stdout, c.stdout)
		}
		if !strings.Contains(stderr, c.stderr) || (c.stderr == "" && stderr != "") {
			t.Errorf("%q: standard error %q, want %q", c.args, stderr, c.stderr)
		}
	}
}

func TestEveryCommandHasHelp(t *testing.T) {
	for _, c := range commands() {
		code, stdout, stderr := try("help", c.name)
		if code != exitOK || !strings.HasPrefix(stdout, "usage: mscclgo "+c.name) || stderr != "" {
			t.Errorf("help %s = %d, %q, %q", c.name, code, stdout, stderr)
		}
	}
}

// TestFullOutput: what a command cannot print is an error.
func TestFullOutput(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	for _, args := range [][]string{{"help"}, {"help", "run"}, {"run", "-h"}, {"version"}, {"ps"}, {"devices"}} {
		var stderr bytes.Buffer
		if code := dispatch(args, nil, full, &stderr); code != exitFailed || !strings.Contains(stderr.String(), "no space left") {
			t.Errorf("%q: code %d, %q", args, code, &stderr)
		}
	}
}

func TestRun(t *testing.T) {
	code, stdout, stderr := try("run", "-n", "2", "--", "sh", "-c", `echo "$RANK $1 $(cat)"`, "sh", "-x")
	if code != 0 || stderr != "" {
		t.Errorf("code %d, standard error %q", code, stderr)
	}
	for _, line := range []string{"[0] 0 -x input\n", "[1] 1 -x \n"} {
		if !strings.Contains(stdout, line) {
			t.Errorf("standard output %q lacks %q", stdout, line)
		}
	}
}

func TestRunWithoutPrefix(t *testing.T) {
	_, stdout, _ := try("run", "-n", "2", "-prefix=false", "echo", "same")
	if stdout != "same\nsame\n" {
		t.Errorf("standard output %q", stdout)
	}
}

func TestRunReturnsTheRanksCode(t *testing.T) {
	code, _, stderr := try("run", "-n", "2", "sh", "-c", `[ $RANK = 1 ] && exit 9; exec sleep 60`)
	if code != 9 || !strings.Contains(stderr, "(rank 1): remote failure: exited with code 9") {
		t.Errorf("code %d, standard error %q", code, stderr)
	}
}

func TestDescribe(t *testing.T) {
	info := &debug.BuildInfo{
		GoVersion: "go1.26.1",
		Main:      debug.Module{Version: "v0.0.0-2026"},
		Settings:  []debug.BuildSetting{{Key: "GOOS", Value: "linux"}, {Key: "GOARCH", Value: "amd64"}},
	}
	want := "mscclgo " + root.Version + " (v0.0.0-2026) go1.26.1 linux/amd64"
	if diff := cmp.Diff(want, describe(info)); diff != "" {
		t.Errorf("describe (-want +got):\n%s", diff)
	}
}

func TestListDevices(t *testing.T) {
	var out bytes.Buffer
	err := listDevices(&out, []gpu.Info{
		{Name: "cuda:0", Arch: "sm_90", Model: "A GPU", Multiprocessors: 132, TotalMemory: 80 << 30},
		{Name: "emu:0", Arch: "emu", Model: "emulated", Multiprocessors: 2, TotalMemory: 1 << 30},
	})
	want := `DEVICE  ARCH   MULTIPROCESSORS  MEMORY    MODEL
cuda:0  sm_90  132              80.0 GiB  A GPU
emu:0   emu    2                1.0 GiB   emulated
`
	if diff := cmp.Diff(want, out.String()); err != nil || diff != "" {
		t.Errorf("listDevices: %v (-want +got):\n%s", err, diff)
	}
}

func TestDevices(t *testing.T) {
	code, stdout, stderr := try("devices")
	if code != 0 || !strings.HasPrefix(stdout, "DEVICE") || !strings.Contains(stdout, "emu:0") {
		t.Errorf("devices = %d, %q, %q", code, stdout, stderr)
	}
}
