package devicecode

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "nvrtc.h"
import "C"

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/cudaenv"
)

// nvrtcNames are the library's file names in a toolkit and in packages that install only
// the files needed at run time.
var nvrtcNames = []string{"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"}

// findNVRTC searches for the library and does not open it, which costs a program nothing
// if its images are in the cache. MSCCLGO_NVRTC is the library or its folder, and
// MSCCLGO_NVRTC_FALLBACK the library where it is in no other place.
func findNVRTC() (cudaTool, error) {
	var folders []string
	for _, dir := range toolkits() {
		folders = append(folders, filepath.Join(dir, "lib64"), filepath.Join(dir, "lib"))
	}
	folders = append(folders, filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))...)
	folders = append(folders, "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
	if set := os.Getenv("MSCCLGO_NVRTC"); set != "" {
		if info, err := os.Stat(set); err != nil {
			return cudaTool{}, fmt.Errorf("MSCCLGO_NVRTC: %w", err)
		} else if !info.IsDir() {
			return nvrtcAt(set)
		}
		folders = []string{set}
	}
	for _, folder := range folders {
		for _, name := range nvrtcNames {
			if path := filepath.Join(folder, name); folder != "" && exists(path) {
				return nvrtcAt(path)
			}
		}
	}
	if last := os.Getenv("MSCCLGO_NVRTC_FALLBACK"); last != "" && os.Getenv("MSCCLGO_NVRTC") == "" {
		return nvrtcAt(last)
	}
	return cudaTool{}, fmt.Errorf("libnvrtc.so was not found; searched: %s", strings.Join(folders, ", "))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func nvrtcAt(library string) (cudaTool, error) {
	identity, err := fileIdentity(library)
	if err != nil {
		return cudaTool{}, err
	}
	includes := cudaIncludes(library)
	return cudaTool{
		identity: fmt.Sprintf("nvrtc %s %q", identity, includes),
		includes: includes,
		compile: func(ctx context.Context, j cudaJob) ([]byte, error) {
			return compileNVRTC(ctx, library, j)
		},
	}, nil
}

// cudaIncludes returns the folders of CUDA's headers (cuda_fp16.h and the like), which
// NVRTC does not contain: the headers of the library's toolkit, of the Python package next to
// the library's, or of another toolkit.
func cudaIncludes(library string) []string {
	candidates := []string{
		filepath.Join(library, "../../include"),
		filepath.Join(library, "../../../cuda_runtime/include"),
	}
	for _, dir := range toolkits() {
		candidates = append(candidates, filepath.Join(dir, "include"))
	}
	for _, dir := range candidates {
		if exists(filepath.Join(dir, "cuda_fp16.h")) {
			found := []string{dir}
			if cccl := filepath.Join(dir, "cccl"); exists(cccl) { // since CUDA 13
				found = append(found, cccl)
			}
			return found
		}
	}
	return nil
}

// compileNVRTC compiles in this process. When ctx ends, it returns at once. The compiler,
// which runs in C, is asked to stop if it supports that; its result is discarded.
func compileNVRTC(ctx context.Context, library string, j cudaJob) ([]byte, error) {
	stop := new(C.int)
	done := make(chan func() ([]byte, error), 1)
	go func() { done <- runNVRTC(library, j, stop) }()
	select {
	case result := <-done:
		return result()
	case <-ctx.Done():
		atomic.StoreInt32((*int32)(unsafe.Pointer(stop)), 1)
		return nil, mscclgo.FromContext(ctx, j.op, "while NVRTC was running")
	}
}

// runNVRTC copies the arguments to C and the result back.
func runNVRTC(library string, j cudaJob, stop *C.int) func() ([]byte, error) {
	var owned []unsafe.Pointer
	own := func(s string) *C.char {
		c := C.CString(s)
		owned = append(owned, unsafe.Pointer(c))
		return c
	}
	defer func() {
		for _, p := range owned {
			C.free(p)
		}
	}()
	array := C.calloc(C.size_t(len(j.options)), C.size_t(unsafe.Sizeof((*C.char)(nil))))
	owned = append(owned, array)
	options := unsafe.Slice((**C.char)(array), len(j.options))
	for i, o := range j.options {
		options[i] = own(o)
	}
	cudaenv.Set() // NVRTC calls cuInit where there is a driver
	r := C.mscclgo_nvrtc_compile(own(library), own(string(j.lineMarked())), C.int(j.architecture),
		C.int(len(options)), unsafe.SliceData(options), stop)
	owned = append(owned, unsafe.Pointer(r.image), unsafe.Pointer(r.log))
	log := strings.TrimSpace(C.GoString(r.log))
	if len(log) > longestMessage {
		log = log[:longestMessage] + "\n..."
	}
	if r.outcome == C.MSCCLGO_NVRTC_DONE {
		image := C.GoBytes(unsafe.Pointer(r.image), C.int(r.size))
		return func() ([]byte, error) { return image, nil }
	}
	err := nvrtcError(r.outcome, library, log, j)
	return func() ([]byte, error) { return nil, err }
}

func nvrtcError(outcome C.int, library, log string, j cudaJob) error {
	switch outcome {
	case C.MSCCLGO_NVRTC_LOAD:
		return mscclgo.Errorf(mscclgo.ErrSystem, j.op, "NVRTC cannot be loaded: %s; %s", log, cudaAdvice) // there is one
	case C.MSCCLGO_NVRTC_ARCHITECTURE:
		return mscclgo.Errorf(mscclgo.ErrUnsupported, j.op, "%s does not support sm_%d: %s; use an older toolkit",
			library, j.architecture, log)
	case C.MSCCLGO_NVRTC_SOURCE:
		hint := ""
		if strings.Contains(log, "cannot open source file \"cuda_") {
			hint = "\nCUDA's headers were not found; set CUDA_HOME to a toolkit with them in its include folder"
		}
		return mscclgo.Errorf(mscclgo.ErrInvalid, j.op, "NVRTC reports:\n%s%s", log, hint)
	}
	return mscclgo.Errorf(mscclgo.ErrSystem, j.op, "NVRTC (%s) failed: %s", library, log)
}
