package mscclgo_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mscclgo/mscclgo"
)

// TestVersion compares Version with the changelog: its newest release, or a version
// in development whose changes are listed as unreleased.
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
}
