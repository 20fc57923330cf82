package race_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/proxyservice"
)

//go:embed testdata/mistakes.cu
var mistakes []byte

const (
	ranks   = 3
	perCase = 8 << 10 // bytes of the buffer
)

// mistakeName finds the kernels of mistakes.cu.
var mistakeName = regexp.MustCompile(`(?m)^KERNEL\((\w+)\)`)

// kernels returns the mistakes in kernels.
func kernels() []string {
	var names []string
	for _, m := range mistakeName.FindAllSubmatch(mistakes, -1) {
		if name := string(m[1]); !strings.HasSuffix(name, "Part") { // which those on the host launch
			names = append(names, name)
		}
	}
	return names
}

// bed is what one rank has for the mistakes.
type bed struct {
	comm          *communicator.Communicator
	module        *gpu.Module
	buffer        *gpu.Buffer
	stream, other *gpu.Stream
	args          []any
	mended        bool
	overlaps      bool // the launches
}

func newBed(ctx context.Context, comm *communicator.Communicator, service *proxyservice.ProxyService, size int, options devicecode.Options) (*bed, error) {
	b := &bed{comm: comm}
	var errs [8]error
	b.buffer, errs[0] = gpu.Upload(comm.Device(), make([]byte, size))
	b.module, errs[1] = devicecode.Load(ctx, comm.Device(), "mistakes.cu", mistakes, options)
	b.stream, errs[2] = comm.NewStream()
	b.other, errs[3] = comm.NewStream()
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	channels, err := comm.MemoryChannels(ctx, b.buffer, communicator.MemoryChannelOptions{})
	if err != nil {
		return nil, err
	}
	group, err := comm.Group(ctx)
	if err != nil {
		return nil, err
	}
	shared, err := comm.Share(ctx, b.buffer)
	if err != nil {
		return nil, err
	}
	buffers, err := shared.Handle()
	if err != nil {
		return nil, err
	}
	ports, err := comm.PortChannels(ctx, service, b.buffer, communicator.PortChannelOptions{})
	if err != nil {
		return nil, err
	}
	peer := 1 - comm.Rank()
	if peer < 0 {
		peer = 0
	}
	b.args = []any{channels.Set(), group, buffers, ports.HandleOf(0, peer)}
	return b, nil
}

// launch launches a kernel on a stream, for case number i.
func (b *bed) launch(s *gpu.Stream, name string, i int) error {
	k, err := b.module.Kernel(name)
	if err != nil {
		return err
	}
	blocks := 1
	switch name {
	case "otherBlock", "signalOfTwoBlocks", "getOfOtherBlock", "blockFence", "countedByTwoBlocks", "constantRead":
		blocks = 2
	case "gridsDiffer":
		if !b.mended && b.comm.Rank() == 0 {
			blocks = 2
		}
	}
	config := gpu.Blocks(blocks, 64)
	config.DynamicShared, config.Overlap = 1024, b.overlaps
	return k.Launch(s, config, append(b.args[:len(b.args):len(b.args)], uint64(i)*perCase)...)
}

// run runs all mistakes in a group, or what they should be, and returns the races.
func run(t *testing.T, mended bool) []gpu.Race {
	finder, err := gpu.FindRaces()
	if err != nil {
		t.Fatal(err)
	}
	defer finder.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	names := kernels()
	var options devicecode.Options
	if mended {
		options.Defines = []string{"MENDED"}
	}
	err = communicator.Local(ctx, ranks, "emu", func(ctx context.Context, comm *communicator.Communicator) error {
		service, err := comm.ProxyService(ctx, proxyservice.ServiceOptions{})
		if err != nil {
			return err
		}
		defer service.Close()
		b, err := newBed(ctx, comm, service, (len(names)+len(onHost))*perCase, options)
		if err != nil {
			return err
		}
		b.mended = mended
		for i, name := range names {
			// All ranks have launched before one waits: what the host does is in order.
			if err := errors.Join(b.launch(b.stream, name, i), comm.Barrier(ctx), b.stream.Synchronize(ctx), comm.Barrier(ctx)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		for i, c := range onHost {
			if err := errors.Join(c.run(ctx, b, len(names)+i, mended), b.stream.Synchronize(ctx), b.other.Synchronize(ctx), comm.Barrier(ctx)); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	races, unwatched, err := finder.Races()
	if err != nil || len(unwatched) > 0 {
		t.Fatal(unwatched, err)
	}
	return races
}

// onHost are mistakes in Go.
var onHost = []struct {
	name string
	run  func(ctx context.Context, b *bed, i int, mended bool) error
}{
	{"hostReads", func(ctx context.Context, b *bed, i int, mended bool) error {
		err := b.launch(b.stream, "fillPart", i)
		if mended {
			err = errors.Join(err, b.stream.Synchronize(ctx))
		}
		view, failed := b.buffer.Slice(uint64(i)*perCase, 64)
		if err = errors.Join(err, failed); err != nil {
			return err
		}
		return gpu.CopyOut(make([]byte, 64), view) // hostReads
	}},
	{"twoStreams", func(ctx context.Context, b *bed, i int, mended bool) error {
		err := b.launch(b.stream, "fillPart", i)
		if mended {
			err = errors.Join(err, b.between())
		}
		return errors.Join(err, b.launch(b.other, "readPart", i))
	}},
	{"copyBeside", func(ctx context.Context, b *bed, i int, mended bool) error {
		err := b.launch(b.stream, "fillPart", i)
		if mended {
			err = errors.Join(err, b.between())
		}
		return errors.Join(err, b.other.Copy(b.buffer, uint64(i)*perCase+4096, b.buffer, uint64(i)*perCase, 256)) // copyBeside
	}},
	{"added", func(ctx context.Context, b *bed, i int, mended bool) error {
		word := uint64(i)*perCase + 7168
		return errors.Join(b.launch(b.other, "awaitAddedPart", i), b.launch(b.stream, "addedPart", i), b.stream.Internal().Add64(b.buffer, word, 1))
	}},
	{"exchanged", func(ctx context.Context, b *bed, i int, mended bool) error {
		word := uint64(i)*perCase + 7168
		return errors.Join(b.launch(b.other, "awaitExchangedPart", i), b.launch(b.stream, "exchangedPart", i), b.stream.Internal().Exchange64(b.buffer, word, 1, b.buffer, word+8))
	}},
	{"toldTwice", func(ctx context.Context, b *bed, i int, mended bool) error {
		word := uint64(i)*perCase + 7168
		var errs []error
		for value := range uint64(2) {
			if !mended || value == 0 {
				errs = append(errs, b.launch(b.stream, "toldPart", i))
			}
			errs = append(errs, b.stream.WriteValue64(b.buffer, word, value+1))
		}
		time.Sleep(5 * time.Millisecond) // so that the wait finds the second value
		return errors.Join(append(errs, b.other.WaitValue64(b.buffer, word, 1, gpu.GreaterOrEqual), b.launch(b.other, "readToldPart", i), b.other.Synchronize(ctx))...)
	}},
	{"writtenTooEarly", func(ctx context.Context, b *bed, i int, mended bool) error {
		return b.overlap(i, "lastReadPart", "nextWritePart")
	}},
	{"readTooEarly", func(ctx context.Context, b *bed, i int, mended bool) error {
		return b.overlap(i, "lastFillPart", "nextReadPart")
	}},
	{"flagReplayed", func(ctx context.Context, b *bed, i int, mended bool) error {
		if err := b.stream.BeginCapture(); err != nil {
			return err
		}
		err := b.launch(b.stream, "replayPart", i)
		graph, failed := b.stream.EndCapture()
		if err = errors.Join(err, failed); err != nil {
			return err
		}
		defer graph.Close()
		for range 64 {
			err = errors.Join(err, graph.Launch(b.stream))
		}
		return errors.Join(err, b.stream.Synchronize(ctx))
	}},
}

// overlap launches kernels that may overlap.
func (b *bed) overlap(i int, names ...string) error {
	b.overlaps = true
	defer func() { b.overlaps = false }()
	for _, name := range names {
		if err := b.launch(b.stream, name, i); err != nil {
			return err
		}
	}
	return nil
}

// between has the other stream wait for the stream.
func (b *bed) between() error {
	e, err := b.comm.Device().NewEvent()
	if err != nil {
		return err
	}
	return errors.Join(b.stream.Record(e), b.other.Wait(e))
}

// places returns the lines of a file that end with a comment that has the name, as places.
func places(file string, text []byte, name string) map[string]bool {
	found := map[string]bool{}
	for i, line := range strings.Split(string(text), "\n") {
		if _, comment, ok := strings.Cut(line, "  // "); ok && strings.Contains(" "+comment+" ", " "+name+" ") {
			found[fmt.Sprintf("%s:%d", file, i+1)] = true
		} else if _, comment, ok := strings.Cut(line, ") // "); ok && comment == name {
			found[fmt.Sprintf("%s:%d", file, i+1)] = true
		}
	}
	return found
}

// TestMistakes checks that each mistake is reported at its lines, and nothing else.
func TestMistakes(t *testing.T) {
	races := run(t, false)
	source, err := os.ReadFile("mistakes_test.go")
	if err != nil {
		t.Skip("the sources are not here")
	}
	explained := make([]bool, len(races))
	for _, r := range races {
		if text := r.String(); strings.Contains(text, "mscclgo/emu/") {
			t.Errorf("it names a header of the emulated device:\n%s", text)
		}
	}
	names := kernels()
	for _, c := range onHost {
		names = append(names, c.name)
	}
	for _, name := range names {
		lines := places("mistakes.cu", mistakes, name)
		for line := range places("mistakes_test.go", source, name) {
			lines[line] = true
		}
		found := false
		for i, r := range races {
			first, _, _ := strings.Cut(r.First.Place, " ")
			second, _, _ := strings.Cut(r.Second.Place, " ")
			if lines[first] && lines[second] {
				found, explained[i] = true, true
				t.Logf("%s:\n%v", name, r)
				break
			}
		}
		if !found {
			t.Errorf("%s was not reported at two of %v", name, lines)
		}
	}
	once := 0
	for i, r := range races {
		first, _, _ := strings.Cut(r.First.Place, " ")
		second, _, _ := strings.Cut(r.Second.Place, " ")
		if r.First.Kernel == "plainMax" {
			once++
		}
		for _, name := range names {
			lines := places("mistakes.cu", mistakes, name)
			flag := places("mistakes.cu", mistakes, name+"'s")
			explained[i] = explained[i] || lines[first] && lines[second] || flag[first] && flag[second]
		}
		if !explained[i] {
			t.Errorf("this is not a seeded mistake:\n%v", r)
		}
	}
	if once != 1 {
		t.Errorf("one atomic function of CUDA's was reported %d times", once)
	}
}

// TestMended checks that nothing is reported where nothing is wrong.
func TestMended(t *testing.T) {
	for _, r := range run(t, true) {
		t.Errorf("%v", r)
	}
}
