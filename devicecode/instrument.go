package devicecode

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// The words that devicecode/include/mscclgo/emu/runtime.h defines CUDA's keywords as, and
// their replacements. They are searched for in preprocessed text, so kernels and shared
// arrays in macros are found too.
const (
	globalWord = "mscclgo_emu_global"
	sharedWord = "mscclgo_emu_shared"
	boundsWord = "mscclgo_emu_launch_bounds"

	// dynamicName begins the names of what dynamicShared adds.
	dynamicName = "mscclgo_emu_dynamic"
)

// instrument turns preprocessed CUDA text into C++ for the emulated device:
//
//   - an extern "C" kernel is registered after its body, in the same scope;
//   - a __shared__ variable becomes thread-local, since an OS thread runs one
//     block at a time;
//   - an extern __shared__ array becomes a reference to the block's dynamic memory or,
//     outside of functions, a thread-local pointer to it.
//
// No lines are added or removed before the end, so that the compiler's messages have the
// user's line numbers. kernels are the names of the kernels. outside is an attribute, or "", for
// functions that no thread of a kernel calls.
func instrument(text []byte, outside string) (out []byte, kernels []string, err error) {
	in := instrumenter{
		text: text, tokens: scan(text), outside: outside,
		removed: map[int]bool{}, before: map[int]string{}, behind: map[int]string{},
	}
	if err := in.run(); err != nil {
		return nil, nil, err
	}
	return in.apply(), in.kernels, nil
}

// tokenKind is the kind of a token, as far as instrument needs it.
type tokenKind uint8

const (
	word    tokenKind = iota // identifier or keyword
	literal                  // number, character or string
	mark                     // any other single character
)

// token is a part of the text. White space and line markers are not tokens.
type token struct {
	kind       tokenKind
	start, end int
}

// scan splits preprocessed C++ into tokens. It accepts any bytes.
func scan(text []byte) []token {
	var tokens []token
	lineStart := true
	for i := 0; i < len(text); {
		c := text[i]
		start := i
		switch {
		case c == '\n':
			lineStart = true
			i++
			continue
		case c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f':
			i++
			continue
		case c == '#' && lineStart: // a line marker or a pragma
			if n := bytes.IndexByte(text[i:], '\n'); n >= 0 {
				i += n
			} else {
				i = len(text)
			}
			continue
		case letter(text, i) > 0 && !digit(c):
			for n := letter(text, i); n > 0; n = letter(text, i) {
				i += n
			}
			if i < len(text) && text[i] == '"' && text[i-1] == 'R' && rawPrefix(text[start:i]) {
				i = skipRaw(text, i)
				tokens = append(tokens, token{literal, start, i})
				break
			}
			tokens = append(tokens, token{word, start, i})
		case digit(c) || c == '.' && i+1 < len(text) && digit(text[i+1]):
			// A preprocessing number, with ' between digits and signed exponents.
			for i++; i < len(text); i++ {
				separator := text[i] == '\'' && i+1 < len(text) && wordByte(text[i+1])
				exponent := (text[i] == '+' || text[i] == '-') && bytes.IndexByte([]byte("eEpP"), text[i-1]) >= 0
				if !wordByte(text[i]) && text[i] != '.' && !separator && !exponent {
					break
				}
			}
			tokens = append(tokens, token{literal, start, i})
		case c == '"' || c == '\'':
			i = skipQuoted(text, i)
			tokens = append(tokens, token{literal, start, i})
		default:
			i++
			tokens = append(tokens, token{mark, start, i})
		}
		lineStart = false
	}
	return tokens
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

func wordByte(c byte) bool {
	return c == '_' || c == '$' || c >= 0x80 || digit(c) || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// letter returns the length of the part of a word at i, or 0 if there is none. The preprocessor of g++ writes
// what is not ASCII as \U000000fc.
func letter(text []byte, i int) int {
	switch {
	case i >= len(text):
		return 0
	case wordByte(text[i]):
		return 1
	case text[i] != '\\' || i+1 == len(text):
		return 0
	}
	digits := map[byte]int{'u': 4, 'U': 8}[text[i+1]]
	if digits == 0 || i+2+digits > len(text) {
		return 0
	}
	if _, err := strconv.ParseUint(string(text[i+2:i+2+digits]), 16, 32); err != nil {
		return 0
	}
	return 2 + digits
}

func rawPrefix(w []byte) bool {
	switch string(w) {
	case "R", "LR", "uR", "UR", "u8R":
		return true
	}
	return false
}

// skipQuoted returns the end of the literal whose quote is at i. A literal ends with its
// line.
func skipQuoted(text []byte, i int) int {
	quote := text[i]
	for i++; i < len(text) && text[i] != '\n'; i++ {
		switch {
		case text[i] == '\\' && i+1 < len(text) && text[i+1] != '\n':
			i++
		case text[i] == quote:
			return i + 1
		}
	}
	return i
}

// skipRaw returns the end of the raw string whose quote is at i.
func skipRaw(text []byte, i int) int {
	open := bytes.IndexByte(text[i:], '(')
	if open < 0 {
		return len(text)
	}
	close := append([]byte{')'}, text[i+1:i+open]...)
	close = append(close, '"')
	n := bytes.Index(text[i+open:], close)
	if n < 0 {
		return len(text)
	}
	return i + open + n + len(close)
}

// scope is the scope that a brace opens.
type scope struct {
	c        bool // functions declared here have C linkage by default
	function bool // not a namespace but a function, a class or an initialiser
}

type instrumenter struct {
	text    []byte
	tokens  []token
	outside string
	scopes  []scope
	removed map[int]bool   // tokens to remove
	before  map[int]string // text to insert before a token
	behind  map[int]string // text to insert after a token
	kernels []string       // names
	dynamic int            // extern __shared__ arrays outside of functions
}

func (in *instrumenter) run() error {
	statement := 0 // the statement's first token
	for i := range in.tokens {
		switch in.at(i) {
		case "{":
			in.scopes = append(in.scopes, in.opened(statement, i))
			statement = i + 1
		case "}":
			if n := len(in.scopes); n > 0 {
				in.scopes = in.scopes[:n-1]
			}
			statement = i + 1
		case ";":
			statement = i + 1
		case "<":
			if i+2 < len(in.tokens) && in.at(i+1) == "<" && in.at(i+2) == "<" && in.tokens[i+2].end == in.tokens[i].start+3 {
				return in.complain(i, "kernel<<<...>>> launches are host code; launch the kernel from Go")
			}
		case boundsWord:
			in.remove(i, in.matching(i+1)+1)
		case sharedWord:
			if err := in.shared(statement, i); err != nil {
				return err
			}
		case globalWord:
			in.remove(i, i+1)
			if err := in.kernel(statement, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// at returns the text of a token, or "" past the end.
func (in *instrumenter) at(i int) string {
	if i < 0 || i >= len(in.tokens) {
		return ""
	}
	return string(in.text[in.tokens[i].start:in.tokens[i].end])
}

// opened returns the scope of the brace at token i of the statement.
func (in *instrumenter) opened(statement, i int) scope {
	var s scope
	if n := len(in.scopes); n > 0 {
		s = in.scopes[n-1]
	}
	for j := statement; j < i; j++ {
		switch in.at(j) {
		case "namespace":
			return s
		case "extern":
			if i == j+2 && in.tokens[j+1].kind == literal {
				s.c = in.at(j+1) == `"C"`
				return s
			}
		}
	}
	s.function = true
	return s
}

// matching returns the token that closes the bracket at token i, the last token if there
// is none, or i-1 if token i is not a bracket.
func (in *instrumenter) matching(i int) int {
	depth := 0
	for j := i; j < len(in.tokens); j++ {
		switch in.at(j) {
		case "(", "[", "{":
			depth++
		case ")", "]", "}":
			depth--
		}
		if depth == 0 {
			if j == i {
				return i - 1
			}
			return j
		}
		if depth < 0 {
			break
		}
	}
	return len(in.tokens) - 1
}

// remove removes tokens but not the line breaks and line markers between them.
func (in *instrumenter) remove(from, to int) {
	for ; from < to; from++ {
		in.removed[from] = true
	}
}

// between returns the text from one token up to another on one line.
func (in *instrumenter) between(from, to int) string {
	var b bytes.Buffer
	for ; from < to; from++ {
		b.WriteString(in.at(from))
		b.WriteByte(' ')
	}
	return b.String()
}

// kernel registers the kernel whose __global__ is token i, if it is an extern "C" one and
// this is its definition.
func (in *instrumenter) kernel(statement, i int) error {
	c := false
	if n := len(in.scopes); n > 0 {
		c = in.scopes[n-1].c
		if in.scopes[n-1].function {
			return nil
		}
	}
	for j := statement; j < i; j++ {
		switch in.at(j) {
		case "template":
			return nil
		case "extern":
			if in.tokens[j+1].kind == literal {
				c = in.at(j+1) == `"C"`
			}
		}
	}
	name, bounds := "", ""
	for j := i + 1; j < len(in.tokens); j++ {
		switch in.at(j) {
		case "extern": // __global__ may come first
			if j+1 < len(in.tokens) && in.tokens[j+1].kind == literal {
				c = in.at(j+1) == `"C"`
			}
		case boundsWord:
			end := in.matching(j + 1)
			bounds = in.between(j+2, end)
			j = end
		case "__attribute__", "alignas", "noexcept", "decltype":
			j = in.matching(j + 1)
		case "(":
			if name == "" && in.tokens[j-1].kind == word {
				name = in.at(j - 1)
				if err := in.plain(j - 1); err != nil {
					return err
				}
			}
			j = in.matching(j)
		case ";":
			return nil
		case "{":
			if c && name != "" {
				in.behind[in.matching(j)] = registration(name, bounds)
				in.kernels = append(in.kernels, name)
			}
			return nil
		}
	}
	return nil
}

// plain returns an error if the name at token i is one that NVIDIA's compilers refuse for kernels and for
// extern __shared__ arrays.
func (in *instrumenter) plain(i int) error {
	name := in.at(i)
	if !strings.ContainsFunc(name, func(r rune) bool { return r == '\\' || r > unicode.MaxASCII }) {
		return nil
	}
	if read, err := strconv.Unquote(`"` + name + `"`); err == nil {
		name = read
	}
	return in.complain(i, "the name "+name+" has letters that are not ASCII, which CUDA takes in no name of a kernel or of an extern __shared__ array; give it another")
}

// registration returns a line of C++ that adds a kernel to the module's table.
func registration(name, bounds string) string {
	return fmt.Sprintf(" static constexpr mscclgo_emu_kernel mscclgo_emu_entry_%[1]s = "+
		"::mscclgo::emu::Kernel<&%[1]s>::entry(\"%[1]s\", ::mscclgo::emu::launchBounds(%[2]s));"+
		" __attribute__((section(\"mscclgo_emu_kernels\"), used)) static const mscclgo_emu_kernel*"+
		" mscclgo_emu_entry_of_%[1]s = &mscclgo_emu_entry_%[1]s;", name, bounds)
}

// shared rewrites the declaration whose __shared__ is token i. __thread must come
// directly after extern or static, and alignas before them.
func (in *instrumenter) shared(statement, i int) error {
	end, storage := i, -1
	for j := statement; j < len(in.tokens); j++ {
		s := in.at(j)
		if s == "extern" || s == "static" {
			storage = j
		}
		if j <= i {
			continue
		}
		if s == ";" || s == "}" {
			end = j
			break
		}
		switch s {
		case "=":
			return in.complain(i, "a __shared__ variable cannot have an initial value; let a thread store it")
		case "(", "[", "{":
			j = in.matching(j)
		}
	}
	in.remove(i, i+1)
	if storage >= 0 && in.at(storage) == "extern" && end > i {
		return in.dynamicShared(i, storage, end)
	}
	align := ""
	if in.at(i+1) == "alignas" {
		after := in.matching(i+2) + 1
		align = in.between(i+1, after)
		in.remove(i+1, after)
	}
	if storage < 0 {
		in.behind[i] = align + "static __thread"
		return nil
	}
	in.before[storage] = align
	in.behind[storage] = " __thread"
	return nil
}

// dynamicShared rewrites an extern declaration whose __shared__ is token i and whose
// semicolon is token end. The memory is aligned already.
func (in *instrumenter) dynamicShared(i, storage, end int) error {
	name, bracket := end-1, end
	for j := min(i, storage) + 1; j < end; j++ {
		switch in.at(j) {
		case "alignas":
			after := in.matching(j+1) + 1
			in.remove(j, after)
			j = after - 1
		case "(", "{":
			j = in.matching(j)
		case "[":
			name, bracket = j-1, j
			j = end
		}
	}
	if name < 0 || in.tokens[name].kind != word {
		return in.complain(i, "an extern __shared__ declaration is of one array: extern __shared__ float name[]")
	}
	if err := in.plain(name); err != nil {
		return err
	}
	in.remove(storage, storage+1)
	if n := len(in.scopes); n > 0 && in.scopes[n-1].function {
		in.before[name] = "(&"
		in.behind[name] = ")"
		in.before[end] = " = ::mscclgo::emu::DynamicShared{}"
		return nil
	}
	if in.at(bracket+1) != "]" {
		return in.complain(i, "an extern __shared__ array outside of a function has no size: extern __shared__ float name[]")
	}
	in.remove(bracket, bracket+2)
	in.behind[storage] = "static __thread"
	in.before[name] = "(*"
	in.behind[name] = ")"
	in.before[end] = fmt.Sprintf(` __asm__("%s%d")`, dynamicName, in.dynamic)
	in.behind[end] = fmt.Sprintf(" %[4]s static void %[1]s_set%[2]d(void* memory) { %[3]s = static_cast<decltype(%[3]s)>(memory); }"+
		" __attribute__((section(\"mscclgo_emu_dynamics\"), used)) static void (*%[1]s_entry%[2]d)(void*) = %[1]s_set%[2]d;",
		dynamicName, in.dynamic, in.at(name), in.outside)
	in.dynamic++
	return nil
}

// apply returns the new text.
func (in *instrumenter) apply() []byte {
	out := make([]byte, 0, len(in.text)+len(in.text)/8)
	done := 0
	for i, t := range in.tokens {
		out = append(out, in.text[done:t.start]...)
		out = append(out, in.before[i]...)
		if text := in.text[t.start:t.end]; !in.removed[i] {
			out = append(out, text...)
		} else { // only a raw string has line breaks
			out = append(out, bytes.Repeat([]byte{'\n'}, bytes.Count(text, []byte{'\n'}))...)
		}
		out = append(out, in.behind[i]...)
		done = t.end
	}
	out = append(out, in.text[done:]...)
	return out
}

// complain returns an error that begins with the token's file and line by the line
// markers.
func (in *instrumenter) complain(i int, message string) error {
	file, line := "source", 0
	for _, l := range bytes.Split(in.text[:in.tokens[i].start], []byte{'\n'}) {
		line++
		fields := bytes.SplitN(l, []byte{' '}, 3)
		if len(fields) != 3 || string(fields[0]) != "#" || !bytes.HasPrefix(fields[2], []byte{'"'}) {
			continue
		}
		if n, err := strconv.Atoi(string(fields[1])); err == nil {
			line = n - 1
			if name, err := strconv.Unquote(string(fields[2][:skipQuoted(fields[2], 0)])); err == nil {
				file = name
			}
		}
	}
	return fmt.Errorf("%s:%d: error: %s", file, line, message)
}
