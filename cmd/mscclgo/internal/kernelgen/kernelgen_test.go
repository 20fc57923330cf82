package kernelgen

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/internal/signature"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestHandles compiles a kernel that takes each of the library's structs by value, which
// must be recognised.
func TestHandles(t *testing.T) {
	names := slices.Sorted(maps.Keys(handles))
	var params, want []string
	for _, name := range names {
		params = append(params, "mscclgo::"+name)
		want = append(want, reflect.TypeOf(handles[name]).String())
	}
	source := fmt.Sprintf("#include <mscclgo/group.cuh>\n#include <mscclgo/memory_channel.cuh>\n#include <mscclgo/port_channel.cuh>\n"+
		"extern \"C\" __global__ void k(%s) {}\n", strings.Join(params, ", "))
	image, err := devicecode.Compile(t.Context(), devicecode.ArchEmu, "handles.cu", []byte(source), devicecode.Options{})
	testerr.Check(t, err)
	_, kernels, err := signature.Split(image)
	if err != nil || len(kernels) != 1 {
		t.Fatal(kernels, err)
	}
	var got []string
	ts := newTypes()
	for _, p := range kernels[0].Params {
		got = append(got, ts.name(p.Type))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestLayout has structs whose members Go would put elsewhere, or cannot have.
func TestLayout(t *testing.T) {
	number := func(size uint32) signature.Type {
		return signature.Type{Kind: signature.Uint, Name: "n", Size: size}
	}
	fields := func(size uint32, fields ...signature.Field) signature.Type {
		return signature.Type{Kind: signature.Struct, Name: "s", Size: size, Fields: fields}
	}
	at := func(offset uint32, t signature.Type) signature.Field {
		return signature.Field{Name: "f", Offset: offset, Type: t}
	}
	for what, c := range map[string]struct {
		t    signature.Type
		want string
	}{
		"natural":          {fields(16, at(0, number(1)), at(8, number(8))), "struct {\nF uint8 // n\nF2 uint64 // n\n}"},
		"aligned member":   {fields(32, at(0, number(4)), at(16, number(4))), "struct {\nF uint32 // n\n_ [12]byte\nF2 uint32 // n\n_ [12]byte\n}"},
		"packed":           {fields(5, at(0, number(1)), at(1, number(4))), ""},
		"packed size":      {fields(6, at(0, number(4))), ""},
		"unknown":          {fields(4), ""},
		"sixteen bytes":    {fields(16, at(0, number(16))), "struct {\nF [16]byte // n\n}"},
		"a struct in it":   {fields(8, at(0, fields(4))), "struct {\nF S // s\n_ [4]byte\n}"},
		"opaque":           {fields(8, at(0, signature.Type{Name: "o", Size: 8})), "struct {\nF [8]byte // o\n}"},
		"no elements":      {fields(4, at(0, number(4)), at(4, signature.Type{Name: "n[0]"})), "struct {\nF uint32 // n\n}"},
		"float of 16 bits": {fields(2, at(0, signature.Type{Kind: signature.Float, Name: "h", Size: 2})), "struct {\nF uint16 // h\n}"},
	} {
		body, ok := newTypes().body(c.t)
		if body != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q, %v", what, body, ok)
		}
	}
}

// TestNames has names that Go does not take as they are.
func TestNames(t *testing.T) {
	for name, want := range map[string]string{
		"allReduce": "AllReduce", "all_reduce": "AllReduce", "__half": "Half", "Vec<double, 3>": "VecDouble3", "_3": "X3", "_": "X", "N": "N",
		"größe": "Größe", "élan_vital": "ÉlanVital", "日": "X日", "ß": "Xß",
	} {
		if got := exported(name); got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
	taken := names{}
	for _, want := range []string{"func2", "func3", "x", "x2"} {
		if got := taken.unique(strings.TrimRight(want, "23")); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := unexported("Größe_É"); got != "größeÉ" {
		t.Errorf("the parameter is %q", got)
	}
	if _, err := Generate(Input{Package: "p", Type: "Ärger", Source: "k.cu", Embed: "k.cu", Kernels: []signature.Kernel{{Name: "k"}}}); err != nil {
		t.Error(err)
	}
	if got := TypeName("some/my_kernels.go"); got != "MyKernels" {
		t.Errorf("TypeName is %q", got)
	}
}

// TestOptions embeds a source with its options.
func TestOptions(t *testing.T) {
	text := testerr.Must(Generate(Input{
		Package: "p", Type: "Kernels", Source: "k.cu", Embed: "cuda/k.cu", Defines: []string{"A", `B="x"`}, Check: true,
		Kernels: []signature.Kernel{{Name: "k"}, {Name: "K"}},
	}))(t)
	for _, part := range []string{"//go:embed cuda/k.cu\n", `devicecode.Options{Defines: []string{"A", "B=\"x\""}, Check: true}`, ") K(", ") K2("} {
		if !strings.Contains(string(text), part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
}

// TestEmbed has paths that are no patterns of //go:embed.
func TestEmbed(t *testing.T) {
	in := Input{Package: "p", Type: "Kernels", Source: "k.cu", Kernels: []signature.Kernel{{Name: "k"}}}
	for path, want := range map[string]string{
		"cuda/k.cu": "cuda/k.cu", "my kernels.cu": `"my kernels.cu"`, "a[1].cu": `a\[1].cu`, "a [1].cu": `"a \\[1].cu"`,
	} {
		in.Embed = path
		text, err := Generate(in)
		if err != nil || !strings.Contains(string(text), "//go:embed "+want+"\n") {
			t.Errorf("%s: no %s in\n%s%v", path, want, text, err)
		}
	}
	for _, path := range []string{"a*.cu", `a"b.cu`, "a\nb.cu", `a\b.cu`} {
		in.Embed = path
		if text, err := Generate(in); err == nil {
			t.Errorf("%q is embedded:\n%s", path, text)
		}
	}
}
