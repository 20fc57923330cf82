package explore_test

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/explore"
)

//go:embed testdata/litmus.cu
var litmus []byte

// Numbers of litmus.cu.
const (
	litmusRounds  = 8
	litmusStride  = 32 * 4 // bytes
	litmusRoles   = 4
	litmusResults = 4
)

var litmusName = regexp.MustCompile(`(?m)^LITMUS\((\w+), "(.*): (never|sometimes)"\)`)

// litmusWant is an outcome of a test, and whether it may come.
type litmusWant struct {
	name      string
	results   []litmusResult
	sometimes bool
}

type litmusResult struct {
	role, result int
	value        uint32
}

func litmusTests(t *testing.T) (tests []litmusWant) {
	for _, m := range litmusName.FindAllSubmatch(litmus, -1) {
		want := litmusWant{name: string(m[1]), sometimes: string(m[3]) == "sometimes"}
		for _, field := range strings.Fields(string(m[2])) {
			var r litmusResult
			if _, err := fmt.Sscanf(field, "%d.%d=%d", &r.role, &r.result, &r.value); err != nil {
				t.Fatal(want.name, err)
			}
			want.results = append(want.results, r)
		}
		tests = append(tests, want)
	}
	return tests
}

// TestLitmus runs litmus tests in many schedules: what the memory model forbids never comes, and
// what it allows comes if memory is weak.
func TestLitmus(t *testing.T) {
	tests := litmusTests(t)
	schedules := number(t, 40)
	came, nearly := make([]int, len(tests)), make([]int, len(tests))
	for n := range schedules {
		var mu sync.Mutex
		results := make([][litmusRounds][litmusRoles][litmusResults]uint32, len(tests))
		p := schedule(n)
		p.Weak = true
		o, err := run(t, p, 2, func(ctx context.Context, comm *communicator.Communicator) error {
			module, err := devicecode.Load(ctx, comm.Device(), "litmus.cu", litmus, devicecode.Options{})
			if err != nil {
				return err
			}
			defer module.Close()
			const each = litmusRounds * litmusStride
			buffer, err := gpu.Upload(comm.Device(), make([]byte, len(tests)*each))
			if err != nil {
				return err
			}
			group, err := comm.Group(ctx)
			if err != nil {
				return err
			}
			shared, err := comm.Share(ctx, buffer)
			if err != nil {
				return err
			}
			buffers, err := shared.Handle()
			if err != nil {
				return err
			}
			stream, err := comm.NewStream()
			if err != nil {
				return err
			}
			for i, test := range tests {
				kernel, err := module.Kernel(test.name)
				if err != nil {
					return err
				}
				err = kernel.Launch(stream, gpu.Blocks(2, 1), group, buffers, uint64(i*each))
				if err := errors.Join(err, comm.Barrier(ctx), stream.Synchronize(ctx), comm.Barrier(ctx)); err != nil {
					return err
				}
			}
			data := make([]byte, len(tests)*each)
			if err := gpu.CopyOut(data, buffer); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			for i := range tests {
				for round := range litmusRounds {
					for block := range 2 {
						for result := range litmusResults {
							at := i*each + round*litmusStride + 4*(16+block*litmusResults+result)
							results[i][round][2*comm.Rank()+block][result] = binary.LittleEndian.Uint32(data[at:])
						}
					}
				}
			}
			return nil
		})
		if err != nil || o.Ended != "" || len(o.Uncontrolled) > 0 {
			t.Fatalf("schedule %d: %v, %q", n, err, o.Uncontrolled)
		}
		for i, test := range tests {
			for round := range litmusRounds {
				is := true
				for j, r := range test.results {
					is = is && results[i][round][r.role][r.result] == r.value
					if is && j == len(test.results)-2 {
						nearly[i]++
					}
				}
				if is && !test.sometimes {
					t.Fatalf("schedule %d: %s: the roles' results are %v, which is forbidden", n, test.name, results[i][round])
				}
				if is {
					came[i]++
				}
			}
		}
	}
	for i, test := range tests {
		if test.sometimes {
			t.Logf("%s: %d of %d", test.name, came[i], schedules*litmusRounds)
		}
		if test.sometimes && came[i] == 0 {
			t.Errorf("%s: it never came in %d schedules", test.name, schedules)
		}
		if len(test.results) > 1 && nearly[i] == 0 {
			t.Errorf("%s: not even all results but the last came in %d schedules", test.name, schedules)
		}
	}
}

// TestFlood writes more words than are remembered, which all are right.
func TestFlood(t *testing.T) {
	const size = 3 << 20
	o, err := run(t, explore.Plan{Scheduler: explore.Random, Seed: 1, Weak: true}, 1, func(ctx context.Context, comm *communicator.Communicator) error {
		module, err := devicecode.Load(ctx, comm.Device(), "litmus.cu", litmus, devicecode.Options{})
		if err != nil {
			return err
		}
		defer module.Close()
		kernel, err := module.Kernel("flood")
		if err != nil {
			return err
		}
		data := make([]byte, size)
		buffer, err := gpu.Upload(comm.Device(), data)
		if err != nil {
			return err
		}
		stream, err := comm.NewStream()
		if err != nil {
			return err
		}
		for range 2 {
			err = errors.Join(err, kernel.Launch(stream, gpu.Blocks(1, 1), buffer, uint64(size)))
		}
		if err := errors.Join(err, stream.Synchronize(ctx), gpu.CopyOut(data, buffer)); err != nil {
			return err
		}
		if i := slices.IndexFunc(data, func(b byte) bool { return b != 7 }); i >= 0 {
			return fmt.Errorf("byte %d is %d", i, data[i])
		}
		return nil
	})
	if err != nil || o.Ended != "" {
		t.Fatal(err, o.Ended)
	}
}

// TestWeakBesideFinder has the race finder keep weak memory from beginning, and then not.
func TestWeakBesideFinder(t *testing.T) {
	finder, err := gpu.FindRaces()
	if err != nil {
		t.Fatal(err)
	}
	p := explore.Plan{Scheduler: explore.Random, Weak: true}
	if x, err := explore.Begin(p); err == nil {
		x.End()
		t.Error("it began")
	} else if !strings.Contains(err.Error(), "-weak=false") {
		t.Error(err)
	}
	finder.Close()
	x, err := explore.Begin(p)
	if err != nil {
		t.Fatal(err)
	}
	x.End()
}
