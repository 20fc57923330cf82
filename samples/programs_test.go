package samples_test

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// built is the folder of programs.
var built string

func TestMain(m *testing.M) {
	var err error
	if built, err = os.MkdirTemp("", "mscclgo-samples-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	os.RemoveAll(built)
	os.Exit(status)
}

// build builds the samples and the command there, without what debuggers read.
var build = sync.OnceValue(func() error {
	out, err := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", built+"/", "./...", "../cmd/mscclgo").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
})

// programs returns the folder with the programs of all samples, and the command.
func programs(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("there is no go command")
	}
	testerr.Check(t, build())
	return built
}
