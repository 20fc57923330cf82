package race_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/race"
)

// floodLines is how many lines of the kernel of floodSource write.
const floodLines = 128

// floodSource is a kernel whose threads all write all of so many words, each from a line that
// depends on the thread and the word, of so many lines.
func floodSource() []byte {
	var b strings.Builder
	b.WriteString("extern \"C\" __global__ void flood(unsigned* p, unsigned words, unsigned lines) {\n" +
		"  for (unsigned i = 0; i < words; ++i)\n    switch ((i * 31 + threadIdx.x * (i / 7 + 1)) % lines) {\n")
	for line := range floodLines {
		fmt.Fprintf(&b, "      case %d:\n        p[i] = i + 7;\n        break;\n", line)
	}
	b.WriteString("    }\n}\n")
	return []byte(b.String())
}

// runFlood runs the kernel of floodSource on a device, and checks what it wrote.
func runFlood(t *testing.T, words, lines uint32) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	err := communicator.Local(ctx, 1, "emu", func(ctx context.Context, comm *communicator.Communicator) error {
		module, err := devicecode.Load(ctx, comm.Device(), "flood.cu", floodSource(), devicecode.Options{})
		if err != nil {
			return err
		}
		flood, err := module.Kernel("flood")
		if err != nil {
			return err
		}
		got := make([]uint32, words)
		buffer, err := gpu.Upload(comm.Device(), got)
		if err != nil {
			return err
		}
		stream, err := comm.NewStream()
		if err != nil {
			return err
		}
		if err := flood.Launch(stream, gpu.Blocks(1, 8), buffer, words, lines); err != nil {
			return err
		}
		if err := stream.Synchronize(ctx); err != nil {
			return err
		}
		if err := gpu.CopyOut(got, buffer); err != nil {
			return err
		}
		for i, v := range got {
			if v != uint32(i+7) {
				return fmt.Errorf("word %d is %d", i, v)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestFlood has more pairs of lines race than are kept, and then thousands of accesses of two
// lines, which are one race.
func TestFlood(t *testing.T) {
	for _, c := range []struct {
		lines  uint32
		most   int
		notes  []string
		enough int
	}{
		{floodLines, 4096, []string{"there were more than 4096 races"}, 4096},
		{1, 1, nil, 1},
	} {
		finder, err := gpu.FindRaces()
		if err != nil {
			t.Fatal(err)
		}
		runFlood(t, 20_000, c.lines)
		races, notes, err := finder.Races()
		if err != nil {
			t.Fatal(err)
		}
		if len(races) > c.most || len(races) < c.enough {
			t.Errorf("%d lines: %d races, from %d to %d are right", c.lines, len(races), c.enough, c.most)
		}
		for i := range races[:min(3, len(races))] {
			if text := races[i].String(); !strings.Contains(text, "write at flood.cu:") || !strings.Contains(text, "of flood on") {
				t.Errorf("%d lines: %s", c.lines, text)
			}
		}
		if len(notes) != len(c.notes) || len(notes) > 0 && !strings.Contains(notes[0], c.notes[0]) {
			t.Errorf("%d lines: the notes are %q, want %q", c.lines, notes, c.notes)
		}
		if err := finder.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestOutOfMemory gives the finder less memory than it needs: it says so, and the program is
// right.
func TestOutOfMemory(t *testing.T) {
	arena, err := race.NewArena()
	if err != nil {
		t.Fatal(err)
	}
	defer arena.Close()
	if err := race.Begin(arena, 1<<20); err != nil {
		t.Fatal(err)
	}
	defer race.End()
	runFlood(t, 1_000_000, 1)
	found, err := race.Read(arena)
	if err != nil {
		t.Fatal(err)
	}
	if len(found.Lost) != 1 || !strings.Contains(found.Lost[0], "all the memory that it may take") {
		t.Errorf("the notes are %q", found.Lost)
	}
}

// TestAllocatedAgain allocates and frees more memory than has a place in the finder, which is
// watched still, and then more at one time than it can watch.
func TestAllocatedAgain(t *testing.T) {
	t.Setenv("MSCCLGO_EMU_MEMORY", fmt.Sprint(uint64(1)<<40))
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
	for _, c := range []struct {
		times int
		size  uint64
		want  string
	}{
		{400, 256 << 20, ""}, {1, 100 << 30, "more memory was allocated at one time than the finder has address space"},
	} {
		for range c.times {
			b, err := d.Alloc(c.size)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
		}
		_, notes, err := finder.Races()
		if err != nil || strings.Join(notes, "") != c.want && (c.want == "" || len(notes) != 1 || !strings.HasPrefix(notes[0], c.want)) {
			t.Errorf("%d times %d bytes: the notes are %q, %v", c.times, c.size, notes, err)
		}
	}
}

// TestFreedAndImported writes memory that was freed and is still mapped elsewhere, and memory that
// was allocated since: they are not the same.
func TestFreedAndImported(t *testing.T) {
	finder, err := gpu.FindRaces()
	if err != nil {
		t.Fatal(err)
	}
	defer finder.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const size = 1 << 20
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var devices [2]*gpu.Device
	var streams [2]*gpu.Stream
	for i := range devices {
		devices[i], err = gpu.Open(fmt.Sprintf("emu:%d", i))
		check(err)
		defer devices[i].Close()
		streams[i], err = devices[i].NewStream()
		check(err)
	}
	fill := func(i int, b *gpu.Buffer) { check(streams[i].Fill(b, 0, 1, size)) }
	alloc := func() *gpu.Buffer {
		b, err := devices[0].Alloc(size)
		check(err)
		return b
	}
	first := alloc()
	file, err := first.Internal().Export()
	check(err)
	imported, err := devices[1].Internal().Import(file, first.Internal().Capacity())
	check(err)
	check(errors.Join(file.Close(), first.Close()))
	// What is behind the import is still one thing, and not the new memory.
	fill(0, alloc())
	fill(1, imported)
	check(errors.Join(streams[0].Synchronize(ctx), streams[1].Synchronize(ctx)))
	races, notes, err := finder.Races()
	check(err)
	if len(races)+len(notes) > 0 {
		t.Errorf("%v, %q", races, notes)
	}
}
