package verbs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestLayout compares abi.h with the headers of the system's libibverbs.
func TestLayout(t *testing.T) {
	if _, err := os.Stat("/usr/include/infiniband/verbs.h"); err != nil {
		t.Skip("libibverbs's headers are not installed (Debian: libibverbs-dev)")
	}
	layout := func(flags ...string) []string {
		program := filepath.Join(t.TempDir(), "layout")
		if out, err := exec.Command("cc", append(flags, "-o", program, "testdata/layout.c")...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		out := testerr.Must(exec.Command(program).Output())(t)
		return strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	ours, theirs := layout("-DOURS", "-I."), layout()
	if len(ours) != len(theirs) || len(ours) < 100 {
		t.Fatalf("%d lines of ours, %d of theirs", len(ours), len(theirs))
	}
	for i := range ours {
		if ours[i] != theirs[i] {
			t.Errorf("ours has %q, the header %q", ours[i], theirs[i])
		}
	}
}
