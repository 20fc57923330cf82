package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestGenerated compares what is in the tree with what the header tells. That the library exports all that the
// header declares is TestExports of package capi.
func TestGenerated(t *testing.T) {
	const root = "../../.."
	h, err := readHeader(root)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the sources are not here:", err)
	}
	testerr.Check(t, err)
	for name, write := range generated {
		have := testerr.Must(os.ReadFile(filepath.Join(root, name)))(t)
		testcmp.Equal(t, name+", which go generate ./capi writes", string(have), write(h))
	}
}

// TestParse reads declarations of each form.
func TestParse(t *testing.T) {
	h := parse(`
typedef struct mscclgo_stream_* mscclgo_stream;  // work; in order
#define MSCCLGO_VOUCHED 0x10000
typedef enum { MSCCLGO_F32 = 0, MSCCLGO_F16 = 1 } mscclgo_type;
enum { MSCCLGO_LOG_DEBUG = -4 };
typedef struct {
  const int *to, *from;  // two
  uint32_t grid[3];
  const char* const* flags;
} mscclgo_thing;
MSCCLGO_API const char* mscclgo_text(void);
MSCCLGO_API mscclgo_status mscclgo_fill(mscclgo_stream stream, mscclgo_type type,
                                        const mscclgo_thing* thing, void** at);
`)
	all := cmp.AllowUnexported(constant{}, structure{}, variable{}, function{})
	testcmp.Equal(t, "handles", h.handles, map[string]bool{"mscclgo_stream": true})
	testcmp.Equal(t, "enums", h.enums, map[string]bool{"mscclgo_type": true, "": true})
	testcmp.Equal(t, "constants", h.constants, []constant{{"VOUCHED", "0x10000"}, {"F32", "0"}, {"F16", "1"}, {"LOG_DEBUG", "-4"}}, all)
	testcmp.Equal(t, "structs", h.structs, []structure{{"thing", []variable{
		{"const int*", "to", ""}, {"const int*", "from", ""}, {"uint32_t", "grid", "3"}, {"const char* const*", "flags", ""},
	}}}, all)
	fill := []variable{{"mscclgo_stream", "stream", ""}, {"mscclgo_type", "type", ""}, {"const mscclgo_thing*", "thing", ""}, {"void**", "at", ""}}
	testcmp.Equal(t, "functions", h.functions, []function{{"const char*", "text", nil}, {"mscclgo_status", "fill", fill}}, all)
}
