package devicecode

import (
	"bytes"
	"strings"
	"testing"
)

func TestInstrument(t *testing.T) {
	const entry = " static constexpr mscclgo_emu_kernel mscclgo_emu_entry_"
	registered := func(name string) string { return entry + name + " " }
	for what, c := range map[string]struct {
		in   string
		want []string // parts of the result, in order
		not  string   // is not in the result
	}{
		"a kernel":              {`extern "C" mscclgo_emu_global void k(int a) { if (a) { } } int x;`, []string{`extern "C"  void k(int a) { if (a) { } }`, registered("k"), `int x;`}, ""},
		"in a block":            {`extern "C" { mscclgo_emu_global void k() { } namespace n { mscclgo_emu_global void j() { } } }`, []string{registered("k"), "namespace", registered("j"), "}"}, ""},
		"__global__ first":      {`mscclgo_emu_global extern "C" void k() { }`, []string{registered("k")}, ""},
		"bounds":                {`extern "C" mscclgo_emu_global void mscclgo_emu_launch_bounds(a(1, 2), 3) k() { }`, []string{registered("k"), "launchBounds(a ( 1 , 2 ) , 3 )"}, "mscclgo_emu_launch_bounds"},
		"attributes":            {`extern "C" mscclgo_emu_global __attribute__((noinline)) void k(int (*f)(int)) { }`, []string{registered("k")}, ""},
		"not extern C":          {`mscclgo_emu_global void k() { } extern "C" { extern "C++" { mscclgo_emu_global void j() { } } }`, nil, entry},
		"only declared":         {`extern "C" mscclgo_emu_global void k();`, nil, entry},
		"a template":            {`extern "C++" { template <class T> mscclgo_emu_global void k(T) { } }`, nil, entry},
		"in a string":           {`const char* s = "mscclgo_emu_shared"; auto r = R"x(mscclgo_emu_global ) ")x"; char c = '"';`, []string{`"mscclgo_emu_shared"`, `(mscclgo_emu_global ) ")x"`}, "__thread"},
		"numbers":               {`int a = 1'000'000; mscclgo_emu_shared int b; double d = 0x1p-3'0;`, []string{"1'000'000; static __thread int b;"}, ""},
		"shared":                {`mscclgo_emu_shared int a[4], b;`, []string{"static __thread int a[4], b;"}, ""},
		"static shared":         {`static mscclgo_emu_shared int a;`, []string{"static __thread", "int a;"}, "static static"},
		"aligned before":        {`alignas(16) mscclgo_emu_shared int a;`, []string{"alignas(16) static __thread int a;"}, ""},
		"aligned behind":        {`mscclgo_emu_shared alignas(alignof(int)) int a;`, []string{"alignas ( alignof ( int ) ) static __thread", "int a;"}, ""},
		"dynamic":               {`void f() { extern mscclgo_emu_shared float a[]; }`, []string{"float (&a)[] = ::mscclgo::emu::DynamicShared{};"}, "extern"},
		"dynamic, extern later": {`void f() { mscclgo_emu_shared extern float a[][2]; }`, []string{"float (&a)[][2] = ::mscclgo::emu::DynamicShared{};"}, "extern"},
		"dynamic, aligned":      {`void f() { extern mscclgo_emu_shared alignas(16) float a[]; }`, []string{"float (&a)[] = ::mscclgo::emu::DynamicShared{};"}, "alignas"},
		"dynamic, outside":      {`extern mscclgo_emu_shared float a[][2];`, []string{"static __thread", "float (*a)[2]", "mscclgo_emu_dynamic0", "OUTSIDE static void", "a = static_cast<decltype(a)>(memory);"}, "extern"},
		"a struct":              {`mscclgo_emu_shared union { int a; struct { int x = 1; } b; } u;`, []string{"static __thread union { int a; struct { int x = 1; } b; } u;"}, ""},
		"line markers":          {"# 1 \"a mscclgo_emu_shared b\"\nmscclgo_emu_shared\n# 2 \"c\"\nint x;", []string{"# 1 \"a mscclgo_emu_shared b\"\nstatic __thread\n# 2 \"c\"\nint x;"}, ""},
	} {
		out, _, err := instrument([]byte(c.in), "OUTSIDE")
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		rest := string(out)
		for _, part := range c.want {
			_, after, found := strings.Cut(rest, part)
			if !found {
				t.Errorf("%s: no %q in %q of %q", what, part, rest, out)
				break
			}
			rest = after
		}
		if c.not != "" && strings.Contains(string(out), c.not) {
			t.Errorf("%s: %q has %q", what, out, c.not)
		}
	}
}

// FuzzInstrument checks that any text is accepted, that no line moves, and that text
// without device code does not change.
func FuzzInstrument(f *testing.F) {
	f.Add([]byte(`extern "C" mscclgo_emu_global void mscclgo_emu_launch_bounds(1) k(int a) { mscclgo_emu_shared int b[3]; }`))
	f.Add([]byte("extern mscclgo_emu_shared alignas(16) char a[];\n# 3 \"x\"\n<<<"))
	f.Add([]byte("R\"x(\n)x\" 'a' 1'0 \"\\"))
	f.Add([]byte("mscclgo_emu_global"))
	f.Add([]byte("mscclgo_emu_launch_bounds(("))
	f.Add([]byte("static mscclgo_emu_shared alignas"))
	f.Add([]byte("mscclgo_emu_launch_bounds(mscclgo_emu_shared"))
	f.Add([]byte("# 0 \n<<<"))
	f.Add([]byte("mscclgo_emu_launch_bounds(\n0"))
	f.Add([]byte("mscclgo_emu_shared alignas(\n8) int a;"))
	f.Add([]byte("mscclgo_emu_launch_bounds(sizeof(R\"(\n\n)\"))"))
	f.Add([]byte("mscclgo_emu_launch_bounds(\"\\\n\")"))
	f.Add([]byte("mscclgo_emu_global void a\\u00fcb\\U0000000() {}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		out, _, err := instrument(text, "")
		if err != nil {
			return
		}
		lines, outLines := bytes.Split(text, []byte{'\n'}), bytes.Split(out, []byte{'\n'})
		if len(outLines) < len(lines) {
			t.Fatalf("%d lines became %d", len(lines), len(outLines))
		}
		if !bytes.Contains(text, []byte("mscclgo_emu_")) && !bytes.Equal(text, out) {
			t.Fatal("text without device code was changed")
		}
		// These two take or move what is behind them, on the next lines too.
		if bytes.Contains(text, []byte("mscclgo_emu_launch_bounds")) || bytes.Contains(text, []byte("alignas")) {
			return
		}
		for i, line := range lines {
			if !bytes.Contains(text, []byte("mscclgo_emu_global")) && !bytes.Contains(line, []byte("mscclgo_emu_")) &&
				len(outLines[i]) < len(line) {
				t.Fatalf("line %d lost something: %q became %q", i+1, line, outLines[i])
			}
		}
	})
}
