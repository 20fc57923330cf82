// Mscclgo starts programs as the ranks of a group on this machine, and shows what running
// ranks do and wait for. It times collectives, compiles kernels beforehand, and writes Go functions for
// kernels. It finds out what works on a machine, and shows its topology and devices. Run "mscclgo
// help" for its commands.
package main

import (
	"fmt"
	"io"
	"os"
)

// commands lists what mscclgo does, in the order of help. A function run
// defines its flags on its call, then parses them, then does it.
func commands() []command {
	return []command{
		{"run", "-n N [flags] [--] PROGRAM [ARG...]", "start a program as the ranks of a group on this machine", run},
		{"race", "-n N [flags] [--] PROGRAM [ARG...]", "run a program on emulated devices, and find accesses to memory that nothing orders", runRace},
		{"explore", "[flags] [--] PROGRAM [ARG...]", "run a program's ranks on emulated devices again and again, each time in another order of their threads, streams and proxies, and with old values of weak memory", runExplore},
		{"bench", "[flags] [COLLECTIVE...]", "check and time collectives, alone or beside NCCL", runBench},
		{"compile", "[flags] SOURCE.cu", "compile kernels beforehand, for machines without a compiler", compile},
		{"precompile", "[flags] [COLLECTIVE...]", "compile the kernels of the collectives into the cache, for first calls that do not wait, and machines without a compiler", runPrecompile},
		{"gen", "[flags] SOURCE.cu", "write a Go function with typed parameters for each kernel of a source", gen},
		{"ps", "[-json] [JOB|PID]", "show what the ranks of running jobs do, and what they wait for", ps},
		{"top", "[-interval TIME] [-n N] [JOB|PID]", "show again and again how fast running ranks make calls and launches", top},
		{"doctor", "[-json] [-svg FILE] [-require CHECKS]", "find out what works on this machine, what does not, and what mends it", runDoctor},
		{"topo", "[-load FILE] [-save FILE] [-svg FILE] [-json] [-predict] [-hosts N] [-kind COLLECTIVES] [-plot FILE]", "show GPUs, NICs, the paths between them and rings; predict the times of collectives, also from a file", runTopo},
		{"devices", "", "list the devices of this machine", devices},
		{"version", "", "print the version of this command", version},
		{"help", "[COMMAND]", "list the commands, or describe one", help},
	}
}

func main() { os.Exit(dispatch(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// dispatch runs the command that args name and returns the code to exit with.
func dispatch(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		listCommands(stderr)
		return exitUsage
	}
	name := args[0]
	switch name {
	case "-h", "-help", "--help":
		name = "help"
	case "-version", "--version":
		name = "version"
	}
	c, ok := find(name)
	if !ok {
		fmt.Fprintf(stderr, "mscclgo: there is no command %q\n", name)
		listCommands(stderr)
		return exitUsage
	}
	return newCall(c, args[1:], stdin, stdout, stderr).do()
}

func find(name string) (command, bool) {
	for _, c := range commands() {
		if c.name == name {
			return c, true
		}
	}
	return command{}, false
}
