package bench

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

// progressMark starts a line of progress that a rank sends to its launcher.
const progressMark = "\x1emscclgo-progress "

// ShowProgress returns a function with which a rank reports its progress: it writes
// lines for a [ProgressFilter].
func ShowProgress(w io.Writer) func(text string) {
	return func(text string) { fmt.Fprintf(w, "%s%s\n", progressMark, text) }
}

// ProgressFilter passes lines on, except the lines of ShowProgress: it shows the newest of
// them at the foot of a terminal, and discards them when Out is no terminal. Each Write
// must be of whole lines, as package launcher's are.
type ProgressFilter struct {
	Out      io.Writer
	Terminal bool
	shown    bool
}

// Write implements io.Writer.
func (f *ProgressFilter) Write(p []byte) (int, error) {
	var out bytes.Buffer
	for line := range strings.Lines(string(p)) {
		text, progress := strings.CutPrefix(line, progressMark)
		if progress && !f.Terminal {
			continue
		}
		if f.shown {
			out.WriteString("\r\x1b[K") // erase what is shown
			f.shown = false
		}
		if progress {
			out.WriteString(strings.TrimRight(text, "\n"))
			f.shown = true
		} else {
			out.WriteString(line)
		}
	}
	if out.Len() == 0 {
		return len(p), nil
	}
	_, err := f.Out.Write(out.Bytes())
	return len(p), err
}

// Clear erases the line that is shown.
func (f *ProgressFilter) Clear() error {
	if !f.shown {
		return nil
	}
	f.shown = false
	_, err := io.WriteString(f.Out, "\r\x1b[K")
	return err
}
