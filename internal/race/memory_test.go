package race_test

import (
	"context"
	_ "embed"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

//go:embed testdata/memory.cu
var memorySource []byte

const memoryThreads = 64 // kThreads

// memoryCases are mistakes in memory that is not a buffer of the device's own, with what reports call it.
var memoryCases = map[string]struct {
	memory string
	run    func(ctx context.Context, comm *communicator.Communicator, kernel *gpu.Kernel) error
}{
	"lastBlock": {"variable partial of emu:0, loaded", func(ctx context.Context, comm *communicator.Communicator, kernel *gpu.Kernel) error {
		sum, err := comm.Device().Alloc(4 * memoryThreads)
		if err != nil {
			return err
		}
		return launchTwo(ctx, comm, kernel, sum)
	}},
	"passOn": {"host memory of emu:0, wrapped", func(ctx context.Context, comm *communicator.Communicator, kernel *gpu.Kernel) error {
		// Not at the begin of a page, and beside memory that is wrapped too.
		memory := make([]byte, 3*4096)
		beside, err := comm.Device().WrapHost(memory[:1024])
		if err != nil {
			return err
		}
		data, err := comm.Device().WrapHost(memory[4096-64:])
		if err != nil {
			return err
		}
		return errors.Join(launchTwo(ctx, comm, kernel, data), data.Close(), beside.Close())
	}},
	"tellHost": {"host memory of emu:0, allocated", func(ctx context.Context, comm *communicator.Communicator, kernel *gpu.Kernel) error {
		data, err := comm.Device().AllocHost(4 * (memoryThreads + 1))
		if err != nil {
			return err
		}
		stream, err := comm.NewStream()
		if err != nil {
			return err
		}
		flag, err := data.Slice(4*memoryThreads, 4)
		if err != nil {
			return err
		}
		if err := kernel.Launch(stream, gpu.Blocks(1, memoryThreads), data); err != nil {
			return err
		}
		for told := make([]uint32, 1); told[0] == 0; {
			if err := errors.Join(gpu.CopyOut(told, flag), ctx.Err()); err != nil {
				return err
			}
		}
		return errors.Join(gpu.CopyOut(make([]uint32, memoryThreads), data), stream.Synchronize(ctx)) // tellHost
	}},
}

func launchTwo(ctx context.Context, comm *communicator.Communicator, kernel *gpu.Kernel, data *gpu.Buffer) error {
	stream, err := comm.NewStream()
	if err != nil {
		return err
	}
	return errors.Join(kernel.Launch(stream, gpu.Blocks(2, memoryThreads), data), stream.Synchronize(ctx))
}

// memoryRaces runs a case.
func memoryRaces(t *testing.T, name string, options devicecode.Options) []gpu.Race {
	t.Helper()
	finder, err := gpu.FindRaces()
	if err != nil {
		t.Fatal(err)
	}
	defer finder.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = communicator.Local(ctx, 1, "emu", func(ctx context.Context, comm *communicator.Communicator) error {
		module, err := devicecode.Load(ctx, comm.Device(), "memory.cu", memorySource, options)
		if err != nil {
			return err
		}
		kernel, err := module.Kernel(name)
		if err != nil {
			return err
		}
		return memoryCases[name].run(ctx, comm, kernel)
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

// TestMemory has mistakes in variables of modules, in memory of the host that devices wrap, and in
// pinned memory that the host reads.
func TestMemory(t *testing.T) {
	for name, c := range memoryCases {
		t.Run(name, func(t *testing.T) {
			found := map[string]bool{}
			for _, r := range memoryRaces(t, name, devicecode.Options{}) {
				t.Log(r)
				for _, a := range []gpu.RaceAccess{r.First, r.Second} {
					place, _, _ := strings.Cut(a.Place, " ")
					if strings.HasPrefix(place, "memory_test.go:") {
						place = "memory_test.go"
					}
					found[place] = true
				}
				if whose, place, _ := strings.Cut(r.Memory, " at "); whose != c.memory || !strings.Contains(place, "memory_test.go:") {
					t.Errorf("the memory is the %s, not the %s", r.Memory, c.memory)
				}
				if name == "lastBlock" && r.Offset >= 2*4*memoryThreads {
					t.Errorf("byte %d of the variable", r.Offset)
				}
			}
			want := places("memory.cu", memorySource, name)
			if name == "tellHost" {
				want["memory_test.go"] = true
			}
			testcmp.Equal(t, "lines", slices.Sorted(maps.Keys(found)), slices.Sorted(maps.Keys(want)))
			for _, r := range memoryRaces(t, name, devicecode.Options{Defines: []string{"MENDED"}}) {
				t.Errorf("without the mistake:\n%v", r)
			}
		})
	}
}
