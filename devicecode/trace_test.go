package devicecode_test

import (
	"bytes"
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

//go:embed trace_test.cu
var traceSource []byte

// TestTraceOff looks at the text for the compiler: nothing in it may write an event unless a trace is
// asked for. With a trace the image is another one.
func TestTraceOff(t *testing.T) {
	cxx, err := exec.LookPath("g++")
	if err != nil {
		t.Skip("there is no g++")
	}
	file := filepath.Join(t.TempDir(), "trace.cpp")
	plain := bytes.Replace(traceSource, []byte("#define MSCCLGO_TRACE\n"), nil, 1)
	if len(plain) == len(traceSource) {
		t.Fatal("the source does not define MSCCLGO_TRACE")
	}
	testerr.Check(t, os.WriteFile(file, plain, 0o600))
	for define, want := range map[string]bool{"-DNONE": false, "-DMSCCLGO_TRACE": true} {
		args := []string{define, "-std=gnu++17", "-Iinclude", "-Iinclude/mscclgo/emu/cuda", "-include", "mscclgo/emu/prelude.h", "-E", "-P", file}
		text := testerr.Must(exec.Command(cxx, args...).Output())(t)
		// writeEvent is the one function that reads a ring and writes to it.
		if got := bytes.Contains(text, []byte("writeEvent")); got != want {
			t.Errorf("with %s, that the text has code for events is %v", define, got)
		}
	}
	dev := testdev.Open(t, 0)
	arch := dev.Info().Arch
	off := testerr.Must(devicecode.Compile(t.Context(), arch, "trace.cu", plain, devicecode.Options{}))(t)
	on := testerr.Must(devicecode.Compile(t.Context(), arch, "trace.cu", plain, devicecode.Options{Trace: true}))(t)
	t.Setenv(devicecode.EnvTrace, "file")
	byEnv := testerr.Must(devicecode.Compile(t.Context(), arch, "trace.cu", plain, devicecode.Options{}))(t)
	if bytes.Equal(off, on) || !bytes.Equal(on, byEnv) {
		t.Error("Options.Trace and MSCCLGO_TRACE do not make the same image, or one of a kernel that records nothing")
	}
}
