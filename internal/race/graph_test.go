package race_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/gpu"
)

// TestGraphsOfStreams launches a graph of two streams on a third one. What the third does behind the
// graph comes after all of it, and what the first one does then is not
// ordered with it: it writes what the graph writes and reads.
func TestGraphsOfStreams(t *testing.T) {
	for _, c := range []struct {
		name  string
		races int
	}{{"ordered", 0}, {"unordered", 2}} {
		t.Run(c.name, func(t *testing.T) {
			finder, err := gpu.FindRaces()
			if err != nil {
				t.Fatal(err)
			}
			defer finder.Close()
			d, err := gpu.Open("emu:0")
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if err := launchElsewhere(t.Context(), d, c.races > 0); err != nil {
				t.Fatal(err)
			}
			races, notes, err := finder.Races()
			if err != nil || len(races) != c.races || len(notes) != 0 {
				t.Errorf("races %v, want %d; notes %q; %v", races, c.races, notes, err)
			}
		})
	}
}

func launchElsewhere(ctx context.Context, d *gpu.Device, mistake bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var s [3]*gpu.Stream
	for i := range s {
		var err error
		if s[i], err = d.NewStream(); err != nil {
			return err
		}
	}
	b, err := d.Alloc(3 * 256)
	if err != nil {
		return err
	}
	defer b.Close()
	fork, err := d.NewEvent()
	if err != nil {
		return err
	}
	join, err := d.NewEvent()
	if err != nil {
		return err
	}
	err = errors.Join(s[0].BeginCapture(), s[0].Fill(b, 0, 1, 256), s[0].Record(fork),
		s[1].Wait(fork), s[1].Copy(b, 256, b, 0, 256), s[1].Record(join), s[0].Wait(join))
	g, endErr := s[0].EndCapture()
	if err := errors.Join(err, endErr); err != nil {
		return err
	}
	err = errors.Join(g.Launch(s[2]), s[2].Copy(b, 512, b, 256, 256))
	if mistake {
		err = errors.Join(err, s[0].Fill(b, 0, 2, 256))
	}
	return errors.Join(err, s[0].Synchronize(ctx), s[2].Synchronize(ctx), g.Close())
}
