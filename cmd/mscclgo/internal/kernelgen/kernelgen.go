// Package kernelgen writes Go functions for the kernels of a source, with the types of the
// kernels' parameters as the compiler describes them.
package kernelgen

import (
	"bytes"
	"cmp"
	"fmt"
	"go/format"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"unicode"
	"unicode/utf8"

	"github.com/mscclgo/mscclgo/internal/signature"
)

// Input is what a file is generated from.
type Input struct {
	Package string // the name of the Go package
	Type    string // the name of the Go type that has the kernels
	Source  string // the base name of the source
	// Embed is the file to embed: a bundle, or the source, to be compiled when it is
	// loaded. It is relative to the generated file.
	Embed   string
	Bundle  bool     // Embed is a bundle
	Defines []string // of the source; without Bundle
	Check   bool     // as devicecode.Options has it; without Bundle
	Kernels []signature.Kernel
}

// Generate returns a Go file. Kernels whose names are mangled are left out.
func Generate(in Input) ([]byte, error) {
	for what, name := range map[string]string{"package": in.Package, "type": in.Type} {
		if !token.IsIdentifier(name) {
			return nil, fmt.Errorf("%q is not a name for a Go %s", name, what)
		}
	}
	if !token.IsExported(in.Type) {
		return nil, fmt.Errorf("the name of the Go type, %q, begins with no capital letter", in.Type)
	}
	if strings.ContainsAny(in.Embed, "\"'`*?<>|:\\\n\r") { // module.CheckFilePath of golang.org/x/mod
		return nil, fmt.Errorf("a file named %q cannot be embedded in Go; give it another name", in.Embed)
	}
	kernels := slices.DeleteFunc(slices.Clone(in.Kernels), func(k signature.Kernel) bool { return strings.HasPrefix(k.Name, "_Z") })
	if len(kernels) == 0 {
		return nil, fmt.Errorf("%s has no kernels; declare them extern \"C\" __global__", in.Source)
	}
	slices.SortFunc(kernels, func(a, b signature.Kernel) int { return cmp.Compare(a.Name, b.Name) })
	p := program{Input: in, Data: lowerFirst(in.Type) + "Data", types: newTypes(in.Type, "Load"+in.Type)}
	methods := names{"Close": true, "Module": true}
	fields := names{"module": true}
	for _, k := range kernels {
		p.Functions = append(p.Functions, p.function(k, methods, fields))
	}
	p.Structs = p.types.structs
	var text bytes.Buffer
	if err := file.Execute(&text, p); err != nil {
		return nil, err
	}
	out, err := format.Source(text.Bytes())
	if err != nil {
		return nil, fmt.Errorf("the generated file is not Go: %w", err)
	}
	return out, nil
}

// program is what the template gets.
type program struct {
	Input
	Data      string // the name of the variable that has the embedded file
	Functions []function
	Structs   []structure
	types     *types
}

type function struct {
	Name, Field string // of the method, and of what it launches
	Kernel      string
	Declaration string // as in the source
	Params      []param
}

type param struct{ Name, Type string }

// function returns the method for a kernel.
func (p *program) function(k signature.Kernel, methods, fields names) function {
	f := function{Kernel: k.Name, Declaration: k.String()}
	f.Name = methods.unique(exported(k.Name))
	f.Field = fields.unique(lowerFirst(f.Name))
	taken := names{"k": true, "stream": true, "cfg": true, "_": true}
	for i, param := range k.Params {
		name := unexported(param.Name)
		if name == "" {
			name = fmt.Sprintf("arg%d", i+1)
		}
		f.Params = append(f.Params, p.param(taken.unique(name), param.Type))
	}
	return f
}

func (p *program) param(name string, t signature.Type) param {
	if t.Kind == signature.Pointer {
		return param{name, "gpu.Pointer"}
	}
	return param{name, p.types.name(t)}
}

// names are identifiers that are in use.
type names map[string]bool

// unique returns the name, with a number if it is in use, and takes it.
func (n names) unique(name string) string {
	for i := 1; ; i++ {
		candidate := name
		if i > 1 {
			candidate = fmt.Sprintf("%s%d", name, i)
		}
		if !n[candidate] && !token.IsKeyword(candidate) {
			n[candidate] = true
			return candidate
		}
	}
}

// TypeName returns the name of the type that a file is for: Kernels for kernels.go.
func TypeName(file string) string {
	return exported(strings.TrimSuffix(filepath.Base(file), ".go"))
}

// words splits an identifier or a type of C++ where it has other characters than letters
// and digits.
func words(name string) []string {
	return strings.FieldsFunc(name, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}

// exported returns a name of C++ as an exported name of Go: all_reduce is AllReduce.
func exported(name string) string {
	var b strings.Builder
	for _, w := range words(name) {
		b.WriteString(withFirst(w, unicode.ToUpper))
	}
	if token.IsExported(b.String()) {
		return b.String()
	}
	return "X" + b.String()
}

// unexported returns a name of C++ as the name of a parameter of Go, or "" if there is none.
func unexported(name string) string {
	parts := words(name)
	if len(parts) == 0 {
		return ""
	}
	return lowerFirst(exported(name))
}

// embedPattern returns a path as //go:embed takes it, which has patterns between spaces, in
// quotes if they have spaces themselves.
func embedPattern(path string) string {
	pattern := strings.ReplaceAll(path, "[", `\[`)
	if strings.ContainsFunc(pattern, unicode.IsSpace) {
		return strconv.Quote(pattern)
	}
	return pattern
}

// lowerFirst makes the first letter of a name small.
func lowerFirst(name string) string {
	return withFirst(name, unicode.ToLower)
}

// withFirst changes the first letter of a name.
func withFirst(name string, change func(rune) rune) string {
	first, size := utf8.DecodeRuneInString(name)
	return string(change(first)) + name[size:]
}

// Header is what each generated file begins with.
const Header = "// Code generated by mscclgo gen"

var file = template.Must(template.New("").Funcs(template.FuncMap{"pattern": embedPattern}).Parse(Header + ` from {{.Source}}. DO NOT EDIT.

package {{.Package}}

import (
	"context"
	_ "embed"
	"errors"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

//go:embed {{pattern .Embed}}
var {{.Data}} []byte

// {{.Type}} has the kernels of {{.Source}}, loaded on a device.
type {{.Type}} struct {
	module *gpu.Module
{{- range .Functions}}
	{{.Field}} *gpu.Kernel
{{- end}}
}

// Load{{.Type}} loads the kernels on a device{{if .Bundle}}, as they were compiled when this file was
// generated{{else}}. They are compiled, unless their image is in the
// cache{{end}}. The caller closes them.
func Load{{.Type}}({{if .Bundle}}_{{else}}ctx{{end}} context.Context, device *gpu.Device) (*{{.Type}}, error) {
{{- if .Bundle}}
	bundle, err := devicecode.OpenBundle({{.Data}})
	if err != nil {
		return nil, err
	}
	module, err := bundle.Load(device)
{{- else}}
	module, err := devicecode.Load(ctx, device, {{printf "%q" .Source}}, {{.Data}}, devicecode.Options{
{{- if .Defines}}Defines: {{printf "%#v" .Defines}},{{end}}{{if .Check}}Check: true,{{end -}}
})
{{- end}}
	if err != nil {
		return nil, err
	}
	k := &{{.Type}}{module: module}
	for _, find := range []struct {
		kernel **gpu.Kernel
		name   string
	}{
{{- range .Functions}}
		{&k.{{.Field}}, {{printf "%q" .Kernel}}},
{{- end}}
	} {
		if *find.kernel, err = module.Kernel(find.name); err != nil {
			return nil, errors.Join(err, module.Close())
		}
	}
	return k, nil
}

// Module returns the loaded module, which has the kernels by name, and variables.
func (k *{{.Type}}) Module() *gpu.Module { return k.module }

// Close unloads the kernels, which must have ended.
func (k *{{.Type}}) Close() error { return k.module.Close() }
{{range .Functions}}
// {{.Name}} queues the kernel
//
//	{{.Declaration}}
//
// on a stream. See [gpu.Kernel.Launch].
func (k *{{$.Type}}) {{.Name}}(stream *gpu.Stream, cfg gpu.LaunchConfig
{{- range .Params}}, {{.Name}} {{.Type}}{{end}}) error {
	return k.{{.Field}}.Launch(stream, cfg{{range .Params}}, {{.Name}}{{end}})
}
{{end}}
{{- range .Structs}}
// {{.Name}} is {{.Comment}}
type {{.Name}} {{.Body}}
{{end}}`))
