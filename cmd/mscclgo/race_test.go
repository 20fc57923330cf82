package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

// raceVariable makes the test's program a rank of TestRace, TestRunDeadlocks or TestExplore.
const raceVariable = "MSCCLGO_TEST_RACE"

// raceSource is a kernel in which number 1 reads what number 0 writes, and waits for it first,
// or not; with waits 2 the wait does not acquire.
const raceSource = `#include <mscclgo/memory_channel.cuh>
extern "C" __global__ void gather(mscclgo::MemoryChannelSet peers, uint32_t rank, uint32_t waits) {
  mscclgo::MemoryChannelHandle channel = peers.to(1 - peers.rank);
  if (rank == 0) {
    channel.write<uint32_t>(threadIdx.x, 7);
    __syncthreads();
    if (threadIdx.x == 0) channel.signal();
    return;
  }
  if (waits == 1 && threadIdx.x == 0) channel.wait();
  if (waits == 2 && threadIdx.x == 0) channel.relaxedWait();
  __syncthreads();
  uint32_t* mine = reinterpret_cast<uint32_t*>(channel.local);
  mine[512 + threadIdx.x] = mine[threadIdx.x];
  if (!waits && threadIdx.x == 0) channel.wait();
}
extern "C" __global__ void spin(volatile uint32_t* word) {
  while (*word == 0) {
  }
}
extern "C" __global__ void touch(uint32_t* words, uint32_t times) {
  for (uint32_t i = 0; i < times; ++i) words[(threadIdx.x + i * blockDim.x) % 2048] = i;
}`

// raceRank is a rank of TestRace or TestRunDeadlocks.
func raceRank(ctx context.Context, comm *communicator.Communicator) error {
	buffer, err := gpu.Upload(comm.Device(), make([]byte, 8192))
	if err != nil {
		return err
	}
	module, err := devicecode.Load(ctx, comm.Device(), "gather.cu", []byte(raceSource), devicecode.Options{})
	if err != nil {
		return err
	}
	gather, err := module.Kernel("gather")
	if err != nil {
		return err
	}
	peers, err := comm.MemoryChannels(ctx, buffer, communicator.MemoryChannelOptions{Name: "ring"})
	if err != nil {
		return err
	}
	stream, err := comm.NewStream()
	if err != nil {
		return err
	}
	if os.Getenv(raceVariable) == "spins" {
		spin, err := module.Kernel("spin")
		if err != nil {
			return err
		}
		if err := spin.Launch(stream, gpu.Blocks(1, 1), buffer); err != nil {
			return err
		}
		return stream.Synchronize(ctx)
	}
	if mode := os.Getenv(raceVariable); mode == "host" || mode == "much" {
		touch, err := module.Kernel("touch")
		if err != nil {
			return err
		}
		if mode == "much" {
			return errors.Join(touch.Launch(stream, gpu.Blocks(1, 64), buffer, uint32(10000)), stream.Synchronize(ctx))
		}
		return errors.Join(touch.Launch(stream, gpu.Blocks(1, 64), buffer, uint32(1)), gpu.CopyIn(buffer, make([]byte, 64)), stream.Synchronize(ctx))
	}
	waits := uint32(0)
	if mode := os.Getenv(raceVariable); mode == "waits" || mode == "fails" {
		waits = 1
	}
	if os.Getenv(raceVariable) == "relaxed" {
		waits = 2
	}
	rank := uint32(comm.Rank())
	if os.Getenv(raceVariable) == "deadlock" {
		rank, waits = 1, 1
	}
	if err := gather.Launch(stream, gpu.Blocks(1, 64), peers.Set(), rank, waits); err != nil {
		return err
	}
	// All have launched before one knows that its kernel is done, and may order another's
	// launch behind it.
	if err := comm.Barrier(ctx); err != nil {
		return err
	}
	if err := stream.Synchronize(ctx); err != nil {
		return err
	}
	return exploredRank(comm.Rank(), buffer)
}

// runRaceRank runs the rank that the environment names, and returns the code to exit with.
func runRaceRank() int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := communicator.Run(ctx, communicator.Options{}, raceRank); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	return 0
}

// TestRace finds a race between two processes at its lines, and none where there is a wait, also of a program that
// fails.
func TestRace(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mode string
		code int
		want []string
	}{
		{"races", exitFailed, []string{"gather.cu:5 ", "gather.cu:14, by thread", "block 0 of gather on rank 0", "block 0 of gather on rank 1", "memory of rank 1"}},
		{"waits", exitOK, []string{"no races"}},
		{"fails", 3, []string{"no races were seen; mscclgo explore looks for"}},
	} {
		t.Setenv(raceVariable, c.mode)
		code, stdout, stderr := try("race", "-n", "2", "--", exe)
		if code != c.code {
			t.Errorf("%s: code %d, want %d\n%s%s", c.mode, code, c.code, stdout, stderr)
		}
		for _, want := range c.want {
			if !strings.Contains(stdout+stderr, want) {
				t.Errorf("%s: the output does not have %q:\n%s%s", c.mode, want, stdout, stderr)
			}
		}
	}
}

// TestRaceOutOfMemory gives the finder less memory than it needs, which is not taken for a run without races.
func TestRaceOutOfMemory(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(raceVariable, "much")
	for _, c := range []struct {
		memory, want string
		code         int
	}{
		{"64K", "-memory", exitUnwatched}, {"1G", "no races", exitOK},
	} {
		code, stdout, stderr := try("race", "-n", "1", "-memory", c.memory, "--", exe)
		if code != c.code || !strings.Contains(stdout, c.want) || (code == exitUnwatched) != strings.Contains(stderr, "no races in what was watched") {
			t.Errorf("-memory %s: code %d, want %d and %q\n%s%s", c.memory, code, c.code, c.want, stdout, stderr)
		}
	}
}

// TestRaceOfHosts has each of two processes write what its kernel writes, which is one race.
func TestRaceOfHosts(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(raceVariable, "host")
	code, stdout, stderr := try("race", "-n", "2", "--", exe)
	if n := strings.Count(stdout, "race on byte"); code != exitFailed || n != 1 || !strings.Contains(stdout, "write at race_test.go:") {
		t.Errorf("code %d, %d races, want 1\n%s%s", code, n, stdout, stderr)
	}
}

// TestRunDeadlocks has two processes wait for each other: the group fails before the waits'
// deadline, and says what each thread waits for.
func TestRunDeadlocks(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(raceVariable, "deadlock")
	t.Setenv("MSCCLGO_DEVICE", "emu")
	code, stdout, stderr := try("run", "-deadlocks", "-n", "2", "--", exe)
	if code != 3 {
		t.Errorf("code %d, want 3", code)
	}
	for _, want := range []string{
		"deadlock, nothing can go on: ranks 0 and 1 wait for each other: signal 1 of channel 'ring' from 1 to 0",
		"rank 0: thread 0 of block 0 of gather waits for signal 1", "63 threads of block 0 of gather, from 1 on, are at __syncthreads",
	} {
		if !strings.Contains(stdout+stderr, want) {
			t.Errorf("the output does not have %q:\n%s%s", want, stdout, stderr)
		}
	}
}

// TestRaceSpins has a kernel that never ends nor yields: the time-out ends its process.
func TestRaceSpins(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(raceVariable, "spins")
	code, stdout, stderr := try("race", "-n", "1", "-timeout", "8s", "--", exe)
	if code == exitOK || !strings.Contains(stderr, "the program has not ended in 8s; -timeout gives it longer") {
		t.Errorf("code %d\n%s%s", code, stdout, stderr)
	}
}

// TestRaceOfOthers runs programs in which there is nothing to watch, or that do not end.
func TestRaceOfOthers(t *testing.T) {
	for _, c := range []struct {
		args, stderr string
		code         int
	}{
		{"race true", "how many ranks", exitUsage},
		{"race -n 1", "which program", exitUsage},
		{"race -n 1 -most 0 true", "-most", exitUsage},
		{"race -n 1 -timeout 0s true", "-timeout", exitUsage},
		{"race -n 2 true", "opened no emulated device", exitFailed},
		{"race -n 1 false", "exited with code 1", exitFailed},
		{"race -n 1 -timeout 1s sleep 100", "has not ended in 1s", 0},
	} {
		code, _, stderr := try(strings.Fields(c.args)...)
		if c.code != 0 && code != c.code || code == exitOK || !strings.Contains(stderr, c.stderr) {
			t.Errorf("%s: code %d, %q", c.args, code, stderr)
		}
	}
}
