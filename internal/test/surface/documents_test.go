package surface

import (
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

var (
	span = regexp.MustCompile("`([^`\n]+)`")
	// goName is package.Name or package.Name.Member, deviceName is Handle::function.
	goName     = regexp.MustCompile(`^([a-z0-9]+)\.([A-Z]\w*)(?:\.([A-Z]\w*))?$`)
	deviceName = regexp.MustCompile(`^(\w+Handle)::(\w+)$`)
	header     = regexp.MustCompile(`^<mscclgo/([\w.]+)>$`)
)

// TestDocumentsNameWhatExists looks for the Go names, device functions and headers of the
// documents in the code.
func TestDocumentsNameWhatExists(t *testing.T) {
	packages := list(t, module+"/...")
	load := compiled(packages)
	public := map[string]*types.Package{}
	for _, p := range packages {
		if p.public() {
			loaded := testerr.Must(load.Import(p.path))(t)
			public[p.name] = loaded
		}
	}
	root := packages[module].dir
	headers := map[string]string{}
	files := testerr.Must(filepath.Glob(root + "/devicecode/include/mscclgo/*.cuh"))(t)
	for _, file := range files {
		text := testerr.Must(os.ReadFile(file))(t)
		headers[filepath.Base(file)] = string(text)
	}
	documents := testerr.Must(filepath.Glob(root + "/docs/*.md"))(t)
	steps := testerr.Must(filepath.Glob(root + "/docs/tutorial/*/*.md"))(t)
	documents = append(documents, steps...)
	found := 0
	for _, document := range append(documents, root+"/README.md", root+"/CONTRIBUTING.md") {
		text := testerr.Must(os.ReadFile(document))(t)
		for _, m := range span.FindAllStringSubmatch(string(text), -1) {
			switch exists, known := named(m[1], public, headers); {
			case known && !exists:
				t.Errorf("%s names %s, which does not exist", strings.TrimPrefix(document, root+"/"), m[1])
			case known:
				found++
			}
		}
	}
	if found < 100 {
		t.Errorf("the documents have %d names only", found)
	}
}

// TestNamed has names that do not exist.
func TestNamed(t *testing.T) {
	packages := list(t, module+"/communicator")
	loaded := testerr.Must(compiled(packages).Import(module + "/communicator"))(t)
	public := map[string]*types.Package{"communicator": loaded}
	headers := map[string]string{"x.cuh": "struct XHandle {\n void put(int)"}
	for text, want := range map[string][2]bool{
		"communicator.Join": {true, true}, "communicator.Communicator.Rank": {true, true}, "communicator.Options.Timeout": {true, true},
		"communicator.Bootstrap.Rank": {true, true},
		"communicator.Nothing":        {false, true}, "communicator.Communicator.Nothing": {false, true}, "communicator.Join.Rank": {false, true},
		"errors.Is": {false, false}, "communicator": {false, false},
		"XHandle::put": {true, true}, "XHandle::get": {false, true}, "YHandle::put": {false, true},
		"<mscclgo/x.cuh>": {true, true}, "<mscclgo/y.cuh>": {false, true},
	} {
		if exists, known := named(text, public, headers); exists != want[0] || known != want[1] {
			t.Errorf("%s: %v, %v, want %v", text, exists, known, want)
		}
	}
}

// named reports whether the code has what a document names, and whether it is a name of
// our code at all.
func named(text string, public map[string]*types.Package, headers map[string]string) (exists, known bool) {
	if m := header.FindStringSubmatch(text); m != nil {
		_, exists = headers[m[1]]
		return exists, true
	}
	if m := deviceName.FindStringSubmatch(text); m != nil && !strings.HasSuffix(m[1], "DeviceHandle") { // MSCCL++'s end so
		for _, source := range headers {
			if strings.Contains(source, "struct "+m[1]+" ") && strings.Contains(source, " "+m[2]+"(") {
				return true, true
			}
		}
		return false, true
	}
	m := goName.FindStringSubmatch(text)
	if m == nil || public[m[1]] == nil {
		return false, false
	}
	o := public[m[1]].Scope().Lookup(m[2])
	if o == nil || m[3] == "" {
		return o != nil, true
	}
	if _, ok := o.(*types.TypeName); !ok {
		return false, true
	}
	member, _, _ := types.LookupFieldOrMethod(o.Type(), true, o.Pkg(), m[3])
	return member != nil, true
}
