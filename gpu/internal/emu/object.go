package emu

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
)

// Symbol names of <mscclgo/emu/abi.h>.
const (
	tableName   = "mscclgo_emu_table"
	anchorName  = "mscclgo_emu_anchor"
	dynamicName = "mscclgo_emu_dynamic" // begins the names of pointers to dynamic shared memory
)

// machines are the processors that modules are compiled for, by GOARCH.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// object describes the variables of a module, as its ELF file does.
type object struct {
	variables map[string]variable // of the module's memory, by symbol name
	table     uint64              // the value of tableName's symbol
	writable  []variable          // the segments with the variables
	code      []variable          // the segments with the code
	shared    sharedLayout
	locals    []local // static __shared__ variables
}

// variable is the place of a symbol's object, relative to where the module is loaded.
type variable struct{ address, size uint64 }

// local is a thread-local variable.
type local struct {
	name string
	size uint64
}

// sharedLayout is the place of __shared__ memory in the thread-local storage; see
// launch.h.
type sharedLayout struct {
	anchor, begin, end uint64
}

// parseObject reads a module's symbols.
func parseObject(data []byte) (*object, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("the image is not an ELF file: %w", err)
	}
	if f.Type != elf.ET_DYN {
		return nil, fmt.Errorf("the image is of ELF type %v, not a shared object", f.Type)
	}
	if here, ok := machines[runtime.GOARCH]; ok && f.Machine != here {
		return nil, fmt.Errorf("the image is for processors of type %v, and this machine is %s; compile it on such a machine", f.Machine, runtime.GOARCH)
	}
	symbols, err := f.Symbols()
	if err != nil {
		return nil, fmt.Errorf("the image has no symbol table: %w", err)
	}
	o := &object{variables: map[string]variable{}}
	found := map[string]bool{}
	for _, p := range f.Progs {
		switch {
		case p.Type == elf.PT_TLS:
			o.shared.begin, o.shared.end = p.Filesz, p.Memsz
		case p.Type == elf.PT_LOAD && p.Flags&elf.PF_W != 0:
			o.writable = append(o.writable, variable{p.Vaddr, p.Memsz})
		case p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0:
			o.code = append(o.code, variable{p.Vaddr, p.Memsz})
		}
	}
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF {
			continue
		}
		switch elf.ST_TYPE(s.Info) {
		case elf.STT_OBJECT:
			o.variables[s.Name] = variable{s.Value, s.Size}
			if s.Name == tableName {
				o.table, found[tableName] = s.Value, true
			}
		case elf.STT_TLS:
			switch {
			case s.Name == anchorName:
				o.shared.anchor, found[anchorName] = s.Value, true
			case !strings.HasPrefix(s.Name, dynamicName):
				o.locals = append(o.locals, local{s.Name, s.Size})
			}
		}
	}
	for _, name := range []string{tableName, anchorName} {
		if !found[name] {
			return nil, errors.New("the image has no symbol " + name)
		}
	}
	l := o.shared
	if l.begin > l.end || l.anchor >= l.begin {
		return nil, errors.New("the image's thread-local storage does not have the layout of package devicecode")
	}
	return o, nil
}

// executes reports whether an address is of the object's code.
func (o *object) executes(address uint64) bool {
	return slices.ContainsFunc(o.code, func(v variable) bool { return address-v.address < v.size })
}

// staticShared returns the bytes of __shared__ variables that are declared in the
// kernel's body or in no kernel's body.
func (o *object) staticShared(kernel string, kernels []string) int {
	sum := uint64(0)
	for _, l := range o.locals {
		other := false
		for _, k := range kernels {
			other = other || k != kernel && strings.HasPrefix(l.name, insideOf(k))
		}
		if !other {
			sum += l.size
		}
	}
	return int(sum)
}

// insideOf returns the prefix of the symbols of variables in the body of an extern "C"
// function (Itanium C++ ABI, "Mangling", local names).
func insideOf(function string) string { return fmt.Sprintf("_ZZ%d%sE", len(function), function) }
