package devicecode

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/wire"
)

func openEmu(t testing.TB) *gpu.Device {
	t.Helper()
	device := testerr.Must(gpu.Open("emu:0"))(t)
	t.Cleanup(func() { device.Close() })
	return device
}

// TestBundle loads a bundle where there is no compiler, home, cache or temporary folder.
func TestBundle(t *testing.T) {
	made, err := CompileBundle(t.Context(), []string{"emu"}, "k.cu", []byte(okSource), Options{CacheDir: t.TempDir()})
	testerr.Check(t, err)
	file := filepath.Join(t.TempDir(), "k.bundle")
	testerr.Check(t, os.WriteFile(file, made.Bytes(), 0o400))
	for _, variable := range []string{"HOME", "XDG_CACHE_HOME", "PATH"} {
		t.Setenv(variable, "")
	}
	t.Setenv("MSCCLGO_CACHE", "/proc/none")
	t.Setenv("TMPDIR", "/proc/none")
	device := openEmu(t)
	opened := testerr.Must(OpenBundle(made.Bytes()))(t)
	if opened.Name() != "k.cu" {
		t.Errorf("the name is %q", opened.Name())
	}
	fromBytes := testerr.Must(opened.Load(device))(t)
	defer fromBytes.Close()
	fromFile := testerr.Must(LoadBundle(device, file))(t)
	defer fromFile.Close()
	for _, m := range []*gpu.Module{fromBytes, fromFile} {
		if _, err := m.Kernel("k"); err != nil {
			t.Error(err)
		}
	}
	_, err = opened.Image("sm_90")
	testerr.Expect(t, err, mscclgo.ErrUnsupported, "k.cu for sm_90", "has images for emu", "-arch emu,sm_90")
	_, err = opened.Image("tpu")
	testerr.Expect(t, err, mscclgo.ErrInvalid, `"tpu"`)
	_, err = opened.Load(nil)
	testerr.Expect(t, err, mscclgo.ErrInvalid, "nil")
}

func TestCompileBundleRefuses(t *testing.T) {
	for _, c := range []struct {
		archs string
		says  string
	}{{"", "0 architectures"}, {"emu,emu", "emu is given twice"}, {"emu,sm_9x", `"sm_9x"`}, {"sm_090", `"sm_090"`}} {
		archs := strings.FieldsFunc(c.archs, func(r rune) bool { return r == ',' })
		_, err := CompileBundle(t.Context(), archs, "k.cu", []byte(okSource), Options{CacheDir: t.TempDir()})
		testerr.Expect(t, err, mscclgo.ErrInvalid, c.says)
	}
}

// TestBundleFiles loads files that are no bundles.
func TestBundleFiles(t *testing.T) {
	device := openEmu(t)
	good := (&Bundle{name: "k.cu", images: []bundledImage{{"emu", []byte("no image")}, {"sm_90", nil}}}).Bytes()
	dir := t.TempDir()
	testerr.Check(t, unix.Mkfifo(dir+"/pipe", 0o600))
	testerr.Check(t, os.WriteFile(dir+"/large", nil, 0o600))
	testerr.Check(t, os.Truncate(dir+"/large", maxFile+1))
	newer := bytes.Clone(good[:len(good)-4])
	newer[4]++
	for name, data := range map[string][]byte{
		"empty": nil, "text": []byte("some text"), "cut": good[:len(good)-1], "altered": append(bytes.Clone(good), 'x'), "newer": newer,
		"image": good,
	} {
		testerr.Check(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	for name, says := range map[string]string{
		"empty": "cut short", "text": "starts with \"some\"", "cut": "cut short or altered", "altered": "cut short or altered",
		"newer": "has version 2, this build reads version 1", "pipe": "not a regular file", "large": "1 GiB", ".": "not a regular file",
		"image": "not for emulated devices",
	} {
		_, err := LoadBundle(device, filepath.Join(dir, name))
		testerr.Expect(t, err, mscclgo.ErrInvalid, says)
	}
	_, err := LoadBundle(device, dir+"/none")
	testerr.Expect(t, err, mscclgo.ErrSystem, "/none")
}

// TestBundleDecodes has envelopes whose contents are wrong.
func TestBundleDecodes(t *testing.T) {
	image := []byte("image")
	for what, b := range map[string]*Bundle{
		"no images":    {},
		"out of order": {images: []bundledImage{{"sm_90", image}, {"emu", image}}},
		"twice":        {images: []bundledImage{{"emu", image}, {"emu", image}}},
		"unknown":      {images: []bundledImage{{"tpu", image}}},
		"long name":    {name: strings.Repeat("x", maxSourceName+1), images: []bundledImage{{"emu", image}}},
		"too many":     {images: make([]bundledImage, maxImages+1)},
	} {
		if _, err := OpenBundle(b.Bytes()); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	// A length that the file does not have must not be allocated.
	w := wire.NewWriter(64)
	w.String("k.cu")
	w.U32(1)
	w.String("emu")
	w.U32(1 << 29)
	_, err := OpenBundle(wire.Seal(bundleKind, bundleVersion, w.Bytes()))
	testerr.Expect(t, err, mscclgo.ErrInvalid, "cut short")
}

func TestBundleChooses(t *testing.T) {
	b := &Bundle{images: []bundledImage{
		{"emu", []byte("e")}, {"sm_80", []byte("80")}, {"sm_86", []byte("86")}, {"sm_90", []byte("90")}, {"sm_100", []byte("100")},
	}}
	if diff := cmp.Diff([]string{"emu", "sm_80", "sm_86", "sm_90", "sm_100"}, b.Architectures()); diff != "" {
		t.Error(diff)
	}
	for arch, want := range map[string]string{
		"emu": "e", "sm_80": "80", "sm_87": "86", "sm_89": "86", "sm_90": "90", "sm_100": "100", "sm_103": "100",
		"sm_75": "", "sm_110": "", "sm_120": "",
	} {
		got, err := b.Image(arch)
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("for %s: %q, %v", arch, got, err)
		}
	}
}

// TestBundleCUDA has images for several GPUs.
func TestBundleCUDA(t *testing.T) {
	forEachCUDATool(t, func(t *testing.T, o Options) {
		b := testerr.Must(CompileBundle(t.Context(), []string{"sm_100", "emu", "sm_90"}, "k.cu", []byte(okSource), o))(t)
		if diff := cmp.Diff([]string{"emu", "sm_90", "sm_100"}, b.Architectures()); diff != "" {
			t.Error(diff)
		}
		for _, arch := range []string{"sm_90", "sm_100"} {
			if image, err := b.Image(arch); err != nil || !isCubin(image) {
				t.Errorf("%s: %d bytes, %v", arch, len(image), err)
			}
		}
	})
}

func FuzzOpenBundle(f *testing.F) {
	f.Add((&Bundle{name: "k.cu", images: []bundledImage{{"emu", []byte("image")}, {"sm_90", nil}}}).Bytes())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := OpenBundle(data)
		if err == nil && !bytes.Equal(b.Bytes(), data) {
			t.Fatal("what was read is written differently")
		}
	})
}

// BenchmarkLoadBundle loads a bundle from its file.
func BenchmarkLoadBundle(b *testing.B) {
	made := testerr.Must(CompileBundle(b.Context(), []string{"emu"}, "check_test.cu", checkedSource, Options{}))(b)
	file := filepath.Join(b.TempDir(), "check.bundle")
	testerr.Check(b, os.WriteFile(file, made.Bytes(), 0o600))
	device := openEmu(b)
	for b.Loop() {
		module := testerr.Must(LoadBundle(device, file))(b)
		module.Close()
	}
}
