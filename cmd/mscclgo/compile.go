package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/mscclgo/mscclgo/devicecode"
)

// compile writes a bundle.
func compile(c *call) error {
	s := sourceFlags(c.flags, devicecode.ArchEmu, "the `architectures` to compile for, such as emu,sm_90,sm_100")
	out := c.flags.String("o", "", "the bundle's `file`; by default the source's with the ending .bundle")
	if err := c.parse(); err != nil {
		return err
	}
	if *out == "" {
		*out = strings.TrimSuffix(filepath.Base(c.flags.Arg(0)), ".cu") + ".bundle"
	}
	if err := keepSource(c, *out); err != nil {
		return err
	}
	bundle, err := s.bundle(c)
	if err != nil {
		return err
	}
	return replaceFile(*out, bundle.Bytes())
}

// keepSource returns an error if writing the file out would replace the source.
func keepSource(c *call, out string) error {
	source, err := os.Stat(c.flags.Arg(0))
	if err != nil {
		return nil // reading it tells
	}
	if there, err := os.Stat(out); err == nil && source.Mode().IsRegular() && os.SameFile(source, there) {
		return &usageError{fmt.Sprintf("the output, %s, would replace the source: name another by -o", out)}
	}
	return nil
}

const longestCompilation = time.Hour

// sourceOptions are the flags of commands that compile a source.
type sourceOptions struct {
	archs   string
	alone   bool // the source's own folder is not searched for #include
	options devicecode.Options
}

func sourceFlags(flags *flag.FlagSet, archs, archUsage string) *sourceOptions {
	s := &sourceOptions{}
	flags.StringVar(&s.archs, "arch", archs, archUsage)
	flags.Var((*repeated)(&s.options.Defines), "D", "a `macro`, NAME or NAME=VALUE; may be repeated")
	flags.Var((*repeated)(&s.options.IncludeDirs), "I", "a `folder` to search for #include, before the source's own; may be repeated")
	flags.BoolVar(&s.options.Check, "check", false, "have kernels check what they do with the library also on GPUs")
	return s
}

// repeated is a flag that may be given several times.
type repeated []string

func (l *repeated) String() string { return strings.Join(*l, ",") }

func (l *repeated) Set(value string) error {
	if value == "" {
		return errors.New("it is empty")
	}
	*l = append(*l, value)
	return nil
}

// bundle compiles the source that the arguments name. An interrupt ends it.
func (s *sourceOptions) bundle(c *call) (*devicecode.Bundle, error) {
	if c.flags.NArg() != 1 {
		return nil, &usageError{fmt.Sprintf("which source? one file, not %d", c.flags.NArg())}
	}
	file := c.flags.Arg(0)
	source, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	ctx, end := interruptible(longestCompilation)
	defer end()
	o := s.options
	if !s.alone {
		o.IncludeDirs = append(o.IncludeDirs[:len(o.IncludeDirs):len(o.IncludeDirs)], filepath.Dir(file))
	}
	archs := strings.Split(s.archs, ",")
	for i := range archs {
		archs[i] = strings.TrimSpace(archs[i])
	}
	return devicecode.CompileBundle(ctx, archs, filepath.Base(file), source, o)
}

// replaceFile writes a file as a whole or not at all. What is no regular file, such as
// /dev/null or a pipe, stays what it is and is written to, and a link stays a link.
func replaceFile(path string, data []byte) error {
	if info, err := os.Stat(path); err == nil {
		if !info.Mode().IsRegular() {
			return os.WriteFile(path, data, 0)
		}
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return err
		}
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once renamed
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
