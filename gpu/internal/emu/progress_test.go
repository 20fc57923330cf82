package emu_test

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The ranks of TestProgress are this test binary again, with their number in the
// environment and the memory as descriptor 3.
const rankVariable = "MSCCLGO_EMU_TEST_RANK"

const (
	progressRanks   = 4
	progressBlocks  = 8
	progressThreads = 256
	progressRounds  = 200
	progressWords   = progressRanks * progressBlocks * progressThreads
)

// Every thread tells its round to the same thread of each other rank and waits
// until all those have come as far. The block's barrier makes each round depend
// on all of the one before.
const progressSource = `
extern "C" __global__ void rounds(unsigned* words, int rank, int ranks, unsigned rounds) {
  unsigned n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
  for (unsigned r = 1; r <= rounds; r++) {
    __threadfence_system();
    atomicExch_system(words + rank * n + i, r);
    for (int p = 0; p < ranks; p++) {
      while (atomicAdd_system(words + p * n + i, 0u) < r) mscclgo::emu::yield();
    }
    __syncthreads();
  }
}
// The same without a word to the emulated device: a user's own loop.
extern "C" __global__ void plain(unsigned* words, int rank, int ranks, unsigned rounds) {
  unsigned n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
  for (unsigned r = rounds + 1; r <= 2 * rounds; r++) {
    atomicExch_system(words + rank * n + i, r);
    for (int p = 0; p < ranks; p++) {
      while (atomicAdd_system(words + p * n + i, 0u) < r) {}
    }
    __syncthreads();
  }
}
`

// TestProgress has 4 processes of 8 blocks of 256 threads wait for each other, on
// as many cores as there are.
func TestProgress(t *testing.T) {
	if text := os.Getenv(rankVariable); text != "" {
		rank, err := strconv.Atoi(text)
		must(t, err)
		progressRank(t, rank)
		return
	}
	d := open(t)
	load(t, d, progressSource) // so that the ranks find it compiled
	mem := alloc(t, d, progressWords*4)
	write(t, d, mem.Ptr(), make([]uint32, progressWords))
	fd, err := mem.ExportFD()
	must(t, err)
	file := os.NewFile(uintptr(fd), "memory")
	defer file.Close()
	var ranks []*exec.Cmd
	for r := range progressRanks {
		cmd := exec.CommandContext(deadline(t), os.Args[0], "-test.run=^TestProgress$", "-test.v")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", rankVariable, r))
		cmd.ExtraFiles = []*os.File{file}
		out := &testWriter{t, r}
		cmd.Stdout, cmd.Stderr = out, out
		must(t, cmd.Start())
		ranks = append(ranks, cmd)
	}
	for r, cmd := range ranks {
		if err := cmd.Wait(); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	for i, v := range read[uint32](t, d, mem.Ptr(), progressWords) {
		if v != 2*progressRounds {
			t.Fatalf("word %d is %d", i, v)
		}
	}
}

// testWriter logs what a rank prints.
type testWriter struct {
	t    *testing.T
	rank int
}

func (w *testWriter) Write(p []byte) (int, error) {
	w.t.Logf("rank %d: %s", w.rank, p)
	return len(p), nil
}

func progressRank(t *testing.T, rank int) {
	d := open(t)
	m := load(t, d, progressSource)
	mem, err := d.ImportFD(3, progressWords*4)
	must(t, err, unix.Close(3))
	for _, name := range []string{"rounds", "plain"} {
		begin := time.Now()
		ran(t, d, kernelOf(t, m, name), shape(progressBlocks, progressThreads), mem.Ptr(), int32(rank), int32(progressRanks), uint32(progressRounds))
		t.Logf("%s: %v a round", name, time.Since(begin)/progressRounds)
	}
	must(t, mem.Free())
}

const volatileSource = `
extern "C" __global__ void relay(volatile unsigned* word) {
  __shared__ volatile unsigned turn;
  if (threadIdx.x == 0) turn = 0;
  __syncthreads();
  while (turn != threadIdx.x) {}
  turn = threadIdx.x + 1;
  while (*word != blockDim.x - 1 - threadIdx.x) {}
  *word = blockDim.x - threadIdx.x;
}
`

// TestVolatileProgress has threads of one block wait for each other, upwards and downwards, by loops that
// only load volatile words.
func TestVolatileProgress(t *testing.T) {
	d := open(t)
	word, s := alloc(t, d, 4).Ptr(), stream(t, d)
	write(t, d, word, []uint32{0})
	must(t, s.Launch(kernelOf(t, load(t, d, volatileSource), "relay"), shape(1, 100), pack(word)), s.Synchronize(deadline(t)))
	if got := read[uint32](t, d, word, 1)[0]; got != 100 {
		t.Errorf("%d of 100 threads had their turn", got)
	}
}
