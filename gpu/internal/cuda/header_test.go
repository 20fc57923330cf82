package cuda

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

//go:embed types.h
var typesHeader []byte

//go:embed functions.h
var functionsHeader []byte

// TestAgainstCUDAHeader compares types.h and functions.h with an installed
// cuda.h: one program, compiled against either, must print the same constants,
// sizes and offsets, and the declared functions must have the listed types.
// MSCCLGO_CUDA_INCLUDE names the folder of cuda.h where it is not the usual one.
func TestAgainstCUDAHeader(t *testing.T) {
	include := os.Getenv("MSCCLGO_CUDA_INCLUDE")
	if include == "" {
		include = "/usr/local/cuda/include"
	}
	if _, err := os.Stat(filepath.Join(include, "cuda.h")); err != nil {
		t.Skip("no cuda.h to compare with; MSCCLGO_CUDA_INCLUDE can name its folder:", err)
	}
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler:", err)
	}
	dir := t.TempDir()
	check(t, os.WriteFile(filepath.Join(dir, "types.h"), typesHeader, 0o600))
	check(t, os.WriteFile(filepath.Join(dir, "functions.h"), functionsHeader, 0o600))

	var program strings.Builder
	program.WriteString(`#include HEADER
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#define SHOW(x) printf("%s = %lld\n", #x, (long long)(x));
#ifdef PROTOTYPES
#define X(name, version, parameters) \
  _Static_assert(__builtin_types_compatible_p(__typeof__(name), CUresult parameters), #name);
#include "functions.h"
#endif
int main(void) {
`)
	constants := regexp.MustCompile(`\bCU(?:DA)?_[A-Z0-9_]+\b`).FindAllString(string(typesHeader), -1)
	for _, name := range constants {
		fmt.Fprintf(&program, "  SHOW(%s)\n", name)
	}
	for structure, fields := range map[string]string{
		"CUdevice": "", "CUdeviceptr": "", "CUmemGenericAllocationHandle": "", "CUuuid": "bytes",
		"CUipcMemHandle": "reserved", "CUmemLocation": "type id",
		"CUmemAllocationProp": "type requestedHandleTypes location win32HandleMetaData allocFlags allocFlags.gpuDirectRDMACapable",
		"CUmemAccessDesc":     "location flags",
		"CUlaunchAttribute":   "id value value.cooperative value.programmaticStreamSerializationAllowed",
		"CUlaunchConfig": "gridDimX gridDimY gridDimZ blockDimX blockDimY blockDimZ sharedMemBytes hStream " +
			"attrs numAttrs",
	} {
		fmt.Fprintf(&program, "  SHOW(sizeof(%s))\n  SHOW(_Alignof(%s))\n", structure, structure)
		for _, field := range strings.Fields(fields) {
			fmt.Fprintf(&program, "  SHOW(offsetof(%s, %s))\n", structure, field)
		}
	}
	program.WriteString("  return 0;\n}\n")
	source := filepath.Join(dir, "show.c")
	check(t, os.WriteFile(source, []byte(program.String()), 0o600))

	show := func(flags ...string) string {
		binary := filepath.Join(dir, "show")
		out, err := exec.Command(compiler, append(flags, "-o", binary, source)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		out, err = exec.Command(binary).Output()
		check(t, err)
		return string(out)
	}
	ours := strings.Split(show(`-DHEADER="types.h"`), "\n")
	theirs := strings.Split(show(`-DHEADER="cuda.h"`, "-DPROTOTYPES", "-I", include), "\n")
	if len(ours) != len(theirs) || len(ours) < 100 {
		t.Fatalf("%d and %d lines", len(ours), len(theirs))
	}
	for i := range ours {
		if ours[i] != theirs[i] {
			t.Errorf("here %s, in cuda.h %s", ours[i], theirs[i])
		}
	}
}
