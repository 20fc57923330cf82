package communicator_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestLogVariable has a group, and one that is split from it, tell of themselves where MSCCLGO_LOG
// asks for it, once each, and the program's logger still hears the same.
func TestLogVariable(t *testing.T) {
	t.Setenv("MSCCLGO_LOG", "info")
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	testerr.Check(t, err)
	stderr := os.Stderr
	os.Stderr = file
	t.Cleanup(func() { os.Stderr = stderr; file.Close() })
	var log bytes.Buffer
	o := communicator.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	testerr.Check(t, communicator.RunTogether(t.Context(), []*gpu.Device{testdev.Open(t, 0)}, o, func(ctx context.Context, c *communicator.Communicator) error {
		part, err := c.Split(ctx, 0, 0)
		if err != nil {
			return err
		}
		return part.Close()
	}))
	written := testerr.Must(os.ReadFile(file.Name()))(t)
	for name, text := range map[string]string{"the standard error": string(written), "the program's logger": log.String()} {
		if n := strings.Count(text, `level=INFO msg="the group has formed" rank=0 ranks=1 hosts=1 device=`); n != 2 {
			t.Errorf("%s has it %d times: %s", name, n, text)
		}
	}
	t.Setenv("MSCCLGO_LOG", "loud")
	err = communicator.Local(t.Context(), 1, testdev.Name(t, 0), func(context.Context, *communicator.Communicator) error { return nil })
	testerr.Expect(t, err, mscclgo.ErrInvalid)
	if want := `MSCCLGO_LOG is "loud", none of debug, info, warn and error`; !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}
