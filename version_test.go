package mscclgo_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mscclgo/mscclgo"
)

// TestVersion compares Version with the changelog: its newest release, or a version
// in development whose changes are listed as unreleased; and with the Python package's.
func TestVersion(t *testing.T) {
	parts := regexp.MustCompile(`^v(0\.\d+\.\d+)(-dev)?$`).FindStringSubmatch(mscclgo.Version)
	if parts == nil {
		t.Fatalf("%q is not v0.x.y or v0.x.y-dev", mscclgo.Version)
	}
	text, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	heading := regexp.MustCompile(`(?m)^## \[(.*?)\]`).FindSubmatch(text)
	if heading == nil {
		t.Fatal("CHANGELOG.md has no heading of a version")
	}
	want := parts[1]
	if parts[2] != "" {
		want = "Unreleased"
	}
	if diff := cmp.Diff(want, string(heading[1])); diff != "" {
		t.Errorf("the newest version in CHANGELOG.md (-want +got):\n%s", diff)
	}

	const python = "python/mscclgo/_version.py"
	if text, err = os.ReadFile(python); err != nil {
		t.Fatal(err)
	}
	want = parts[1]
	if parts[2] != "" {
		want += ".dev0"
	}
	version := regexp.MustCompile(`(?m)^__version__ = "(.*)"$`).FindSubmatch(text)
	if version == nil {
		t.Fatalf("%s has no __version__", python)
	}
	if diff := cmp.Diff(want, string(version[1])); diff != "" {
		t.Errorf("the version in %s (-want +got):\n%s", python, diff)
	}
}
