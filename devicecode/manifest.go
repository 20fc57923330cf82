package devicecode

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// A manifest leads from what is known without a compiler, the source and the options, to
// an image in the cache. It has an entry for each compiler and each state of the included
// files with which the source was compiled. It saves running the preprocessor, and where
// no compiler is installed any more, the image is found nevertheless.
type manifest struct{ entries []manifestEntry }

// manifestEntry tells how an image came about.
type manifestEntry struct {
	compiler string  // its identity
	own      []stamp // files that were included, by content
	system   []stamp // files that belong to the compiler, by size and time
	// hiding has the files that a search for any included file would find first, if it
	// were from a user's folder. As long as they are the same, all is found where it was.
	hiding []string
	image  string // the key
}

// stamp shows whether a file has changed.
type stamp struct{ path, state string }

const (
	manifestVersion = 1
	maxEntries      = 8 // the newest are kept
	maxStamps       = 1 << 14
	maxPath         = 4096
)

var manifestKind = [4]byte{'m', 'i', 'n', 'c'}

// dependency is a file that was included.
type dependency struct {
	path   string // absolute
	system bool   // it belongs to the compiler or the system
}

// search is where the user's includes are searched for.
type search struct {
	dirs    []string // absolute
	library []string // the names of the library's headers, which are behind the folders
}

// manifestKey returns the name of the manifest for a source and options. headers is the
// name of the library's headers' contents. Another version of this package may compile otherwise.
func manifestKey(j job, headers string) string {
	digest := sha256.New()
	fmt.Fprintf(digest, "%q %x %q %q %q %q %t ", j.name, sha256.Sum256(j.source), j.options.Defines, absolutes(j.options.IncludeDirs), j.options.Flags, headers, j.race)
	fmt.Fprintf(digest, "%s %q ", mscclgo.Version, slices.Concat(compileFlags, briefFlags, describeFlags, raceFlags, raceFlagsOf[false], raceFlagsOf[true], raceLinkFlags, linkFlags))
	fmt.Fprintf(digest, "%q ", environment())
	return "manifest-" + j.arch + "-" + hex.EncodeToString(digest.Sum(nil))
}

// environment returns the variables that compilers read.
func environment() (values []string) {
	for _, variable := range []string{"CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN"} {
		values = append(values, os.Getenv(variable))
	}
	return values
}

// absolutes returns the absolute names of folders.
func absolutes(dirs []string) []string {
	out := make([]string, len(dirs))
	for i, dir := range dirs {
		out[i] = dir
		if path, err := filepath.Abs(dir); err == nil {
			out[i] = path
		}
	}
	return out
}

// recall returns the image that a compilation would make, if it is in the cache.
// compiler is the identity of the one that is installed, or "" if there is none. Then the
// files that belong to it may be missing as well, and only the user's own are looked at.
func (c cache) recall(key, compiler string, where search) ([]byte, bool) {
	if c.dir == "" {
		return nil, false
	}
	m, err := c.readManifest(key)
	if err != nil {
		return nil, false
	}
	for _, e := range m.entries {
		if (compiler == "" || compiler == e.compiler) && e.current(compiler != "", where) {
			if image, ok := c.read(e.image); ok {
				return image, true
			}
		}
	}
	return nil, false
}

// remember adds to the manifest that the source's image is the key's. files are
// the files that were included since start. It does nothing if the image may depend on more. An error
// is from writing: without the manifest the preprocessor runs the next time.
func (c cache) remember(key, compiler, image string, source []byte, where search, files []dependency, start time.Time) error {
	if c.dir == "" || compiler == "" || variable(source) {
		return nil
	}
	e := manifestEntry{compiler: compiler, image: image}
	for _, f := range files {
		info, err := os.Stat(f.path)
		if err != nil || !info.ModTime().Before(start.Add(-clockTick)) {
			return nil // it may have changed since it was included
		}
		if f.system {
			e.system = append(e.system, stamp{f.path, fileState(info)})
			continue
		}
		text, err := os.ReadFile(f.path)
		if err != nil || variable(text) {
			return nil
		}
		e.own = append(e.own, stamp{f.path, textState(text)})
	}
	e.hiding = where.hiding(e.paths())
	m, err := c.readManifest(key)
	if err != nil {
		m = manifest{}
	}
	m.entries = slices.DeleteFunc(m.entries, func(old manifestEntry) bool {
		return old.compiler == compiler && slices.Equal(old.own, e.own) && slices.Equal(old.system, e.system) && slices.Equal(old.hiding, e.hiding)
	})
	m.entries = append([]manifestEntry{e}, m.entries...)
	m.entries = m.entries[:min(len(m.entries), maxEntries)]
	return c.write(filepath.Join(c.dir, key), m.encode(key))
}

// clockTick is more than the steps of the clock that files' times are taken from.
const clockTick = 20 * time.Millisecond

// variable reports whether what the compiler makes of a text may change though no file that
// it includes does.
func variable(text []byte) bool {
	for _, name := range []string{"__has_include", "__DATE__", "__TIME__", "__TIMESTAMP__"} {
		if bytes.Contains(text, []byte(name)) {
			return true
		}
	}
	return false
}

// current reports whether the included files are what they were, with or without those
// that belong to the compiler.
func (e *manifestEntry) current(system bool, where search) bool {
	for _, s := range e.own {
		text, err := os.ReadFile(s.path)
		if err != nil || textState(text) != s.state {
			return false
		}
	}
	if system {
		for _, s := range e.system {
			info, err := os.Stat(s.path)
			if err != nil || fileState(info) != s.state {
				return false
			}
		}
	}
	return slices.Equal(where.hiding(e.paths()), e.hiding)
}

// paths returns the names of all included files.
func (e *manifestEntry) paths() []string {
	paths := make([]string, 0, len(e.own)+len(e.system))
	for _, s := range e.own {
		paths = append(paths, s.path)
	}
	for _, s := range e.system {
		paths = append(paths, s.path)
	}
	return paths
}

func textState(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }

func fileState(info fs.FileInfo) string {
	return fmt.Sprintf("%d %d", info.Size(), info.ModTime().UnixNano())
}

// hiding returns the files in the folders whose names there are an end of the path of an
// included file: the ones that a directive may mean.
func (s search) hiding(included []string) []string {
	included = slices.Clone(included)
	for _, name := range s.library {
		included = append(included, "/"+name)
	}
	var found []string
	for _, dir := range s.dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		names := make(map[string]bool, len(entries))
		for _, e := range entries {
			names[e.Name()] = true
		}
		for _, path := range included {
			for rest := path; ; {
				_, after, ok := strings.Cut(rest, "/")
				if !ok {
					break
				}
				rest = after
				first, _, _ := strings.Cut(rest, "/")
				if candidate := filepath.Join(dir, rest); names[first] && candidate != path && exists(candidate) {
					found = append(found, candidate)
				}
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func (m manifest) encode(key string) []byte {
	w := wire.NewWriter(16 << 10)
	w.String(key)
	w.U32(uint32(len(m.entries)))
	for _, e := range m.entries {
		w.String(e.compiler)
		w.String(e.image)
		for _, stamps := range [][]stamp{e.own, e.system} {
			w.U32(uint32(len(stamps)))
			for _, s := range stamps {
				w.String(s.path)
				w.String(s.state)
			}
		}
		w.U32(uint32(len(e.hiding)))
		for _, path := range e.hiding {
			w.String(path)
		}
	}
	return wire.Seal(manifestKind, manifestVersion, w.Bytes())
}

func (c cache) readManifest(key string) (manifest, error) {
	data, err := readOwn(filepath.Join(c.dir, key))
	if err != nil {
		return manifest{}, err
	}
	return decodeManifest(key, data)
}

func decodeManifest(key string, data []byte) (manifest, error) {
	body, err := wire.Open(manifestKind, manifestVersion, data)
	if err != nil {
		return manifest{}, err
	}
	r := wire.NewReader(body)
	if r.String(maxKey) != key {
		return manifest{}, errors.New("it is another manifest")
	}
	count := func(limit uint32) uint32 {
		n := r.U32()
		if n > limit {
			r.Fail(fmt.Errorf("%d of something, at most %d are allowed", n, limit))
			return 0
		}
		return n
	}
	var m manifest
	for n := count(maxEntries); n > 0 && r.Err() == nil; n-- {
		e := manifestEntry{compiler: r.String(maxStamps * maxPath), image: r.String(maxKey)}
		for _, stamps := range []*[]stamp{&e.own, &e.system} {
			for n := count(maxStamps); n > 0 && r.Err() == nil; n-- {
				*stamps = append(*stamps, stamp{r.String(maxPath), r.String(maxKey)})
			}
		}
		for n := count(maxStamps); n > 0 && r.Err() == nil; n-- {
			e.hiding = append(e.hiding, r.String(maxPath))
		}
		m.entries = append(m.entries, e)
	}
	if err := r.End(); err != nil {
		return manifest{}, err
	}
	return m, nil
}
