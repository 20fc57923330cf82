package doctor

import (
	"os"
	"path"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/show"
)

// unlimited stands for the absence of a limit.
const unlimited = ^uint64(0)

// column separates the columns of /proc/self/limits.
var column = regexp.MustCompile(`  +`)

// limit returns the soft limit of this process with that name in /proc/self/limits.
func (e *examination) limit(name string) uint64 {
	for line := range strings.Lines(e.read("/proc/self/limits")) {
		fields := column.Split(line, -1)
		if len(fields) < 2 || fields[0] != name {
			continue
		}
		if n, err := strconv.ParseUint(fields[1], 10, 64); err == nil {
			return n
		}
	}
	return unlimited
}

// cgroup returns the least of a limit in this process's control group and those above it.
// With version 1 of control groups, the name is version 2's too.
func (e *examination) cgroup(controller, name string) uint64 {
	least := uint64(unlimited)
	for line := range strings.Lines(e.read("/proc/self/cgroup")) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		var root, file string
		switch v1 := fields[1]; {
		case v1 == "":
			root, file = "/sys/fs/cgroup", name
		case v1 == controller && controller == "memory":
			root, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		case v1 == controller:
			root, file = "/sys/fs/cgroup/"+controller, name
		default:
			continue
		}
		for folder := fields[2]; ; folder = path.Dir(folder) {
			if n, err := strconv.ParseUint(e.read(path.Join(root, folder, file)), 10, 64); err == nil {
				least = min(least, n)
			}
			if folder == "/" || folder == "." {
				break
			}
		}
	}
	return least
}

// lockedMemory looks at what RDMA needs: memory that cannot be paged out.
func (e *examination) lockedMemory() Finding {
	n := e.limit("Max locked memory")
	rdma := len(e.rdma()) > 0
	switch {
	case n == unlimited:
		return ok("no limit")
	case !rdma:
		return ok("%s; only RDMA devices need more, and there is none", sizeText(n))
	}
	return warning("ulimit -l unlimited  # memlock in /etc/security/limits.conf; docker run --ulimit memlock=-1; srun --propagate=NONE",
		"%s, which InfiniBand shares among all that it registers", sizeText(n))
}

// Descriptors that a rank has open for itself, and for each peer: sockets of the bootstrap
// and of transports, imported memory.
const ownDescriptors, peerDescriptors = 100, 6

func (e *examination) descriptors() Finding {
	n := e.limit("Max open files")
	if n == unlimited {
		return ok("no limit")
	}
	if n < ownDescriptors+7*peerDescriptors {
		return failed("ulimit -n 65536", "%d open files: too few for a group of 8 ranks", n)
	}
	ranks := (n - ownDescriptors) / peerDescriptors
	if ranks < 64 {
		return warning("ulimit -n 65536", "%d open files: enough for groups of about %d ranks", n, ranks)
	}
	return ok("%d open files: enough for groups of about %d ranks", n, ranks)
}

func (e *examination) addressSpace() Finding {
	n := e.limit("Max address space")
	switch {
	case n == unlimited:
		return ok("no limit")
	case len(e.gpus()) > 0:
		return warning("ulimit -v unlimited", "%s: CUDA reserves more than it uses, more than all GPUs have", sizeText(n))
	case n < 4<<30:
		return warning("ulimit -v unlimited", "%s: an emulated device has room for little memory", sizeText(n))
	}
	return ok("%s", sizeText(n))
}

// threads is about how many threads a rank has: Go's, a block's on an emulated device.
const threads = 64

func (e *examination) processes() Finding {
	n := min(e.limit("Max processes"), e.cgroup("pids", "pids.max"))
	switch {
	case n == unlimited:
		return ok("no limit")
	case n < 8*threads:
		return warning("ulimit -u 4096  # docker run --pids-limit -1", "%d processes and threads: a rank has about %d", n, threads)
	}
	return ok("%d processes and threads", n)
}

func (e *examination) memory() Finding {
	limit, total := e.cgroup("memory", "memory.max"), uint64(unlimited)
	for line := range strings.Lines(e.read("/proc/meminfo")) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "MemTotal:" {
			if n, err := strconv.ParseUint(fields[1], 10, 54); err == nil {
				total = n << 10
			}
		}
	}
	n := min(limit, total)
	text := "of the machine"
	if limit < total {
		text = "by the limit of this control group"
	}
	switch {
	case n == unlimited:
		return warning("", "unknown: neither /proc/meminfo nor a control group tells")
	case n < 2<<30:
		return warning("docker run --memory 8g, or the like of your batch system", "%s %s: memory of emulated devices, pinned and shared memory count", sizeText(n), text)
	}
	return ok("%s %s", sizeText(n), text)
}

// sharedMemory looks for what NCCL needs, and makes what connection/shm does: memory without
// a name, of a size that is fixed.
func (e *examination) sharedMemory() Finding {
	if err := sealedMemory(); err != nil {
		return failed("docker run --security-opt seccomp=unconfined, or a profile that allows memfd_create", "memory to share without a name: %v", err)
	}
	var s unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &s); err != nil {
		return warning("mount -t tmpfs tmpfs /dev/shm", "/dev/shm: %v; mscclgo shares memory without it, NCCL does not", err)
	}
	size := s.Blocks * uint64(s.Frsize)
	if size < 1<<30 {
		return warning("docker run --shm-size 1g, or --ipc host", "%s in /dev/shm: mscclgo needs none, NCCL wants more", sizeText(size))
	}
	return ok("memory can be shared without a name, between GPUs that have no access to each other\n%s in /dev/shm; mscclgo needs none", sizeText(size))
}

// sealedMemory makes memory as rings of connection/shm have.
func sealedMemory() error {
	fd, err := unix.MemfdCreate("mscclgo-doctor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	defer unix.Close(fd)
	for err = unix.EINTR; err == unix.EINTR; { // by a signal of Go's scheduler
		err = unix.Fallocate(fd, 0, 0, 4<<20) // the ring of shm.Options
	}
	if err != nil {
		return os.NewSyscallError("fallocate", err)
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	return os.NewSyscallError("fcntl", err)
}

func (e *examination) cpus() Finding {
	n := runtime.NumCPU()
	text := show.Count(n, "CPU") + " for this process"
	if online := len(e.machine.CPUs); online > n {
		text += " of " + strconv.Itoa(online)
	}
	if quota, ok := e.quota(); ok && quota < float64(n) {
		return warning("docker run --cpus "+strconv.Itoa(n)+", or the like", "%s, and the control group has time for %.1f of them: a rank that is paused while others wait makes these slow", text, quota)
	}
	if gpus := len(e.gpus()); n < 2*gpus {
		return warning("taskset, srun --cpus-per-task, docker run --cpuset-cpus", "%s, for %d GPUs: each rank has a thread that serves channels and one that watches", text, gpus)
	}
	return ok("%s", text)
}

// quota returns for how many CPUs the control group has time.
func (e *examination) quota() (float64, bool) {
	for line := range strings.Lines(e.read("/proc/self/cgroup")) {
		folder, v2 := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !v2 {
			continue
		}
		if fields := strings.Fields(e.read(path.Join("/sys/fs/cgroup", folder, "cpu.max"))); len(fields) == 2 {
			quota, err1 := strconv.ParseFloat(fields[0], 64)
			period, err2 := strconv.ParseFloat(fields[1], 64)
			return quota / period, err1 == nil && err2 == nil && period > 0
		}
	}
	return 0, false
}

func (e *examination) numa() Finding {
	nodes := len(e.machine.Nodes)
	if nodes < 2 {
		return ok("one node")
	}
	var unknown []string
	for _, g := range e.machine.GPUs {
		if g.NUMANode < 0 {
			unknown = append(unknown, "GPU "+strconv.Itoa(g.Index))
		}
	}
	if len(unknown) > 0 {
		return warning("numactl --hardware  # bind ranks by hand: numactl --cpunodebind N --membind N", "%d nodes, and of %s none is known to be near", nodes, strings.Join(unknown, ", "))
	}
	return ok("%d nodes; threads that serve channels are put near the rank's GPU", nodes)
}
