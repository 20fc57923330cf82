// Package race finds accesses to memory that nothing orders, on emulated devices. Kernels
// that are compiled for it tell of each access, and streams, hosts and proxies of each of
// theirs; happens-before is kept by clocks (clock.c), and the last accesses to each 8 bytes
// in a shadow (shadow.c). Both are in an arena that all processes of a run share, so that
// one finder serves ranks of one process and of several.
package race

// #include <stdlib.h>
// #include "host.h"
import "C"

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Variable names the arena of a run, a path: mscclgo race sets it for the ranks.
const Variable = "MSCCLGO_RACE"

// Finder is the race finder of this process.
type Finder struct {
	engine unsafe.Pointer // *race_engine

	mu    sync.Mutex
	texts map[string]C.uint32_t
	where C.uint32_t

	wrapped wrapped
}

// The finder is one for the process, as its memory is.
var current struct {
	sync.Mutex
	finder *Finder
	err    error
	opened bool // the environment was looked at
}

// NewArena returns a new arena, a memory file.
func NewArena() (*os.File, error) {
	fd, err := unix.MemfdCreate("mscclgo-race", unix.MFD_CLOEXEC)
	if err == nil {
		if err = unix.Ftruncate(fd, C.RACE_ARENA_BYTES); err != nil {
			unix.Close(fd)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make a memory file for the race finder: %w", err)
	}
	return os.NewFile(uintptr(fd), "mscclgo-race"), nil
}

// Memory returns the bytes that an arena may take: half of what the machine has free.
func Memory() uint64 {
	data, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) > 1 && fields[0] == "MemAvailable:" {
			if kib, err := strconv.ParseUint(fields[1], 10, 64); err == nil {
				return kib * 1024 / 2
			}
		}
	}
	return 1 << 30
}

// Format makes a new arena ready for other processes. memory is the bytes that it may
// take.
func Format(arena *os.File, memory uint64) error {
	current.Lock()
	defer current.Unlock()
	if err := begin(arena, memory); err != nil {
		return err
	}
	end()
	return nil
}

// Begin starts the finder of this process in a new arena. No device may be open.
func Begin(arena *os.File, memory uint64) error {
	current.Lock()
	defer current.Unlock()
	return begin(arena, memory)
}

// begin starts the finder; memory is 0 if the arena is not new.
func begin(arena *os.File, memory uint64) error {
	if current.finder != nil {
		return errors.New("the race finder has been started already")
	}
	engine := C.race_start(C.int(arena.Fd()), C.uint64_t(memory))
	if engine == nil {
		return errors.New("no address space for the race finder, which needs 2.5 TiB of it; raise the limit (ulimit -v unlimited)")
	}
	a := C.race_current()
	if a.version != C.RACE_VERSION {
		C.race_stop()
		return errors.New("the arena is not one of this version of the race finder")
	}
	f := &Finder{engine: unsafe.Pointer(engine), texts: map[string]C.uint32_t{}}
	f.wrapped.init()
	if rank := os.Getenv("RANK"); rank != "" && os.Getenv(Variable) != "" {
		f.where = f.text("rank " + rank)
	}
	current.finder = f
	return nil
}

// Weaken has loads of explored kernels get older values than the newest, where the memory model
// allows it (weak.c), and no races be looked for, until [End]. No device may be open.
func Weaken() error {
	current.Lock()
	defer current.Unlock()
	if C.race_weaken() == 0 {
		return errors.New("no memory for the values that are replaced")
	}
	return nil
}

// End stops the finder of this process. No device may be open.
func End() {
	current.Lock()
	defer current.Unlock()
	end()
}

func end() {
	if current.finder != nil {
		C.race_stop()
		current.finder = nil
	}
}

// Current returns the finder, or nil if there is none. The first call starts the one that
// the environment names.
func Current() (*Finder, error) {
	current.Lock()
	defer current.Unlock()
	if current.opened || current.finder != nil {
		return current.finder, current.err
	}
	current.opened = true
	path := os.Getenv(Variable)
	if path == "" {
		return nil, nil
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		err = begin(file, 0)
		file.Close()
	}
	if err != nil {
		current.err = fmt.Errorf("%s=%s: %w", Variable, path, err)
	}
	return current.finder, current.err
}

// Joined counts an emulated device that was opened.
func (f *Finder) Joined() {
	if f != nil {
		C.race_join()
	}
}

// Enabled reports whether there is a finder.
func Enabled() bool {
	f, _ := Current()
	return f != nil
}

// Engine returns the finder's functions, a race_engine of engine.h, or nil.
func (f *Finder) Engine() unsafe.Pointer {
	if f == nil {
		return nil
	}
	return f.engine
}

// text returns the number of a text.
func (f *Finder) text(s string) C.uint32_t {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, ok := f.texts[s]
	if !ok {
		c := C.CString(s)
		n = C.race_text(c)
		C.free(unsafe.Pointer(c))
		f.texts[s] = n
	}
	return n
}

// on returns the text for the rank, if the process has one, and the device.
func (f *Finder) on(device string) C.uint32_t {
	if f.where != 0 {
		return f.where
	}
	return f.text(device)
}

// caller returns the text of Caller.
func (f *Finder) caller() C.uint32_t { return f.text(Caller()) }

// Caller returns the file's name and the line of Go that called this module's packages.
func Caller() string {
	var pcs [48]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	last := "?"
	for {
		frame, more := frames.Next()
		if frame.File != "" && !strings.HasPrefix(frame.Function, "runtime.") {
			last = fmt.Sprintf("%s:%d", filepath.Base(frame.File), frame.Line)
			if !library(frame) {
				break
			}
		}
		if !more {
			break
		}
	}
	return last
}

// library reports whether a frame is of the packages that users call.
func library(frame runtime.Frame) bool {
	const module = "github.com/mscclgo/mscclgo/"
	rest, ok := strings.CutPrefix(frame.Function, module)
	return ok && !strings.HasSuffix(frame.File, "_test.go") && !strings.HasPrefix(rest, "samples/") && !strings.HasPrefix(rest, "docs/")
}

// Module is code that was loaded.
type Module struct{ number C.uint32_t }

// AddModule keeps an image, from which lines are found.
func (f *Finder) AddModule(image []byte) Module {
	h := fnv.New64a()
	h.Write(image)
	return Module{number: C.race_module_add(C.uint64_t(h.Sum64()), unsafe.Pointer(&image[0]), C.uint64_t(len(image)))}
}

// Unwatched notes that there is code which was not compiled for the finder.
func (f *Finder) Unwatched() { C.race_lose(C.RACE_LOST_CODE) }

// string returns a text of the arena.
func (f *Finder) string(text C.uint32_t) string { return C.GoString(&C.race_current().texts[text]) }
