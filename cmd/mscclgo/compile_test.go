package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// sources writes files to a folder and goes there.
func sources(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		testerr.Check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	t.Chdir(dir)
	t.Setenv("MSCCLGO_CACHE", t.TempDir())
	return dir
}

func TestCompile(t *testing.T) {
	dir := sources(t, map[string]string{
		"scale.cu": "#include \"by.h\"\nextern \"C\" __global__ void scale(float* v) { *v *= BY + MORE; }\n",
		"by.h":     "#define BY 2\n",
	})
	for args, file := range map[string]string{
		"compile -D MORE=1 scale.cu":                                "scale.bundle",
		"compile -arch emu -D MORE=1 -o other " + dir + "/scale.cu": "other",
	} {
		if code, stdout, stderr := try(strings.Fields(args)...); code != exitOK || stdout+stderr != "" {
			t.Fatalf("%s: code %d, %q, %q", args, code, stdout, stderr)
		}
		device := testerr.Must(gpu.Open("emu:0"))(t)
		defer device.Close()
		module := testerr.Must(devicecode.LoadBundle(device, file))(t)
		defer module.Close()
		kernel := testerr.Must(module.Kernel("scale"))(t)
		if p := kernel.Internal().Params(); len(p) != 1 || p[0].Name != "v" || p[0].Type.Name != "float*" || p[0].Size != 8 {
			t.Errorf("the parameters are %+v", p)
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
			t.Errorf("%s: %v, %v", file, info, err)
		}
	}
}

// TestCompileInto writes to what must not be replaced by a file.
func TestCompileInto(t *testing.T) {
	sources(t, map[string]string{"k.cu": "extern \"C\" __global__ void k() {}\n", "file": "old"})
	testerr.Check(t, errors.Join(unix.Mkfifo("pipe", 0o600), os.Symlink("file", "link")))
	pipe, err := os.OpenFile("pipe", os.O_RDWR, 0) // whose buffer has room for a bundle
	testerr.Check(t, err)
	defer pipe.Close()
	for name, kind := range map[string]os.FileMode{"pipe": os.ModeNamedPipe, "link": os.ModeSymlink} {
		if code, _, stderr := try("compile", "-o", name, "k.cu"); code != exitOK {
			t.Errorf("%s: code %d, %q", name, code, stderr)
		}
		if info, err := os.Lstat(name); err != nil || info.Mode().Type() != kind {
			t.Fatalf("%s: %v, %v", name, info, err)
		}
	}
	want := testerr.Must(os.ReadFile("file"))(t)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(pipe, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the pipe has another bundle than the file of %d bytes: %v", len(want), err)
	}
	if _, err := devicecode.OpenBundle(want); err != nil {
		t.Error(err)
	}
}

func TestCompileRefuses(t *testing.T) {
	dir := sources(t, map[string]string{"good.cu": "", "wrong.cu": "int x = ;\n"})
	for _, c := range []struct {
		args   string
		code   int
		stderr string
	}{
		{"compile", exitUsage, "which source?"},
		{"compile good.cu wrong.cu", exitUsage, "one file, not 2"},
		{"compile -D  good.cu", exitUsage, "which source?"},
		{"compile none.cu", exitFailed, "none.cu"},
		{"compile wrong.cu", exitFailed, "wrong.cu:1:"},
		{"compile -arch tpu good.cu", exitFailed, `unknown architecture "tpu"`},
		{"compile -arch emu,emu good.cu", exitFailed, "given twice"},
		{"compile -o none/x good.cu", exitFailed, "none"},
		{"compile -o ./good.cu good.cu", exitUsage, "would replace the source"},
	} {
		code, stdout, stderr := try(strings.Fields(c.args)...)
		if code != c.code || stdout != "" || !strings.Contains(stderr, c.stderr) {
			t.Errorf("%s: code %d, %q, %q", c.args, code, stdout, stderr)
		}
	}
	if text, err := os.ReadFile("good.cu"); err != nil || len(text) != 0 {
		t.Errorf("the source has %d bytes, %v", len(text), err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("the folder holds %v, %v", left, err)
	}
}
