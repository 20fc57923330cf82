package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/kernelgen"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/internal/signature"
)

// gen writes a Go file and, if architectures are asked for, a bundle beside it.
func gen(c *call) error {
	s := sourceFlags(c.flags, "", "the `architectures` to compile for and embed, such as emu,sm_90,sm_100; if there are none, the source is embedded, and compiled where it is loaded")
	out := c.flags.String("o", "", "the Go `file` to write; by default the source's name with the ending .go")
	pkg := c.flags.String("package", os.Getenv("GOPACKAGE"), "the Go package's `name`; by default go generate's, or the one in the file's folder")
	typ := c.flags.String("type", "", "the Go type's `name`; by default the file's: Kernels for kernels.go")
	if err := c.parse(); err != nil {
		return err
	}
	if c.flags.NArg() == 1 && *out == "" {
		*out = strings.TrimSuffix(filepath.Base(c.flags.Arg(0)), ".cu") + ".go"
	}
	if err := keepSource(c, *out); err != nil {
		return err
	}
	if err := keepHandwritten(*out); err != nil {
		return err
	}
	in, data, err := s.generated(c, *out)
	if err != nil {
		return err
	}
	if in.Package = *pkg; in.Package == "" {
		folder, err := filepath.Abs(filepath.Dir(*out))
		if err != nil {
			return err
		}
		in.Package = filepath.Base(folder)
	}
	if in.Type = *typ; in.Type == "" {
		in.Type = kernelgen.TypeName(*out)
	}
	text, err := kernelgen.Generate(in)
	if err != nil {
		return err
	}
	if in.Bundle {
		if err := replaceFile(filepath.Join(filepath.Dir(*out), in.Embed), data); err != nil {
			return err
		}
	}
	return replaceFile(*out, text)
}

// keepHandwritten returns an error if gen has not written what is in the file out.
func keepHandwritten(out string) error {
	if info, err := os.Stat(out); err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return nil // what cannot be written is for what writes it to say
	}
	if text, err := os.ReadFile(out); err != nil || bytes.HasPrefix(text, []byte(kernelgen.Header)) {
		return err
	}
	return &usageError{fmt.Sprintf("%s was not written by gen; name another file with -o, or remove it", out)}
}

// generated returns what the file out is generated from, and the bundle's bytes if it is to
// have one.
func (s *sourceOptions) generated(c *call, out string) (kernelgen.Input, []byte, error) {
	in := kernelgen.Input{Bundle: s.archs != "", Defines: s.options.Defines, Check: s.options.Check}
	if !in.Bundle {
		// The compilation at run time has neither these folders nor the source's.
		if len(s.options.IncludeDirs) > 0 {
			return in, nil, &usageError{"-I needs -arch, since the embedded source is compiled elsewhere, without these folders"}
		}
		s.archs, s.alone = devicecode.ArchEmu, true
	}
	bundle, err := s.bundle(c)
	if err != nil {
		return in, nil, err
	}
	in.Source = bundle.Name()
	if in.Bundle {
		in.Embed = strings.TrimSuffix(filepath.Base(out), ".go") + ".bundle"
	} else if in.Embed, err = embeddable(c.flags.Arg(0), out); err != nil {
		return in, nil, err
	}
	in.Kernels, err = describeKernels(bundle)
	return in, bundle.Bytes(), err
}

// embeddable returns the source's path as //go:embed in the file out takes it.
func embeddable(source, out string) (string, error) {
	folder, err := filepath.Abs(filepath.Dir(out))
	if err != nil {
		return "", err
	}
	if source, err = filepath.Abs(source); err != nil {
		return "", err
	}
	path, err := filepath.Rel(folder, source)
	if err != nil || !filepath.IsLocal(path) {
		return "", fmt.Errorf("%s is not in the folder of %s or below, so Go cannot embed it; name -arch to embed images, or put the two together", source, out)
	}
	return filepath.ToSlash(path), nil
}

// describeKernels returns the kernels of a bundle, which must be the same on all architectures.
func describeKernels(bundle *devicecode.Bundle) ([]signature.Kernel, error) {
	var first []signature.Kernel
	var firstArch string
	for _, arch := range bundle.Architectures() {
		image, err := bundle.Image(arch)
		if err != nil {
			return nil, err
		}
		_, kernels, err := signature.Split(image)
		if err != nil {
			return nil, err
		}
		if kernels == nil {
			return nil, fmt.Errorf("the compiler for %s does not tell the parameters of kernels, or there is none; declare them extern \"C\" __global__", arch)
		}
		if first == nil {
			first, firstArch = kernels, arch
		} else if err := agree(firstArch, arch, first, kernels); err != nil {
			return nil, err
		}
	}
	return first, nil
}

// agree compares the sizes of the kernels' parameters for two architectures, which differ
// if the source asks for which it is compiled.
func agree(archA, archB string, a, b []signature.Kernel) error {
	shape := func(k signature.Kernel) string {
		var sizes []uint32
		for _, p := range k.Params {
			sizes = append(sizes, p.Type.Size)
		}
		return fmt.Sprint(sizes)
	}
	for _, swap := range []bool{false, true} {
		if swap {
			archA, archB, a, b = archB, archA, b, a
		}
		has := map[string]signature.Kernel{}
		for _, k := range b {
			has[k.Name] = k
		}
		for _, k := range a {
			if strings.HasPrefix(k.Name, "_Z") {
				continue
			}
			other, ok := has[k.Name]
			if !ok {
				return fmt.Errorf("there is a kernel %s for %s and not for %s", k.Name, archA, archB)
			}
			if shape(k) != shape(other) {
				return fmt.Errorf("a kernel is %v for %s and %v for %s", k, archA, other, archB)
			}
		}
	}
	return nil
}
