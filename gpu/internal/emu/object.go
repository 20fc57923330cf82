package emu

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"strings"
)

// The names that <mscclgo/emu/abi.h> fixes.
const (
	tableName   = "mscclgo_emu_table"
	anchorName  = "mscclgo_emu_anchor"
	dynamicName = "mscclgo_emu_dynamic_shared"
)

// object is what the ELF file of a module says about its variables.
type object struct {
	variables map[string]variable // of the module's memory, by symbol name
	table     uint64              // the value of tableName's symbol
	shared    sharedLayout
	locals    []local // static __shared__ variables
}

// variable is where a symbol's object lies; its address counts from where the
// module is loaded.
type variable struct{ address, size uint64 }

// local is a thread-local variable.
type local struct {
	name string
	size uint64
}

// sharedLayout says where the thread-local storage holds __shared__ memory; see
// launch.h.
type sharedLayout struct {
	anchor, begin, end, dynamic, dynamicBytes uint64
}

// parseObject reads a module's symbols.
func parseObject(data []byte) (*object, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("it is not an ELF file: %w", err)
	}
	if f.Type != elf.ET_DYN {
		return nil, fmt.Errorf("it is not a shared object but of type %v", f.Type)
	}
	symbols, err := f.Symbols()
	if err != nil {
		return nil, fmt.Errorf("it has no symbol table: %w", err)
	}
	o := &object{variables: map[string]variable{}}
	found := map[string]bool{}
	for _, p := range f.Progs {
		if p.Type == elf.PT_TLS {
			o.shared.begin, o.shared.end = p.Filesz, p.Memsz
			o.shared.dynamic = p.Memsz
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
			switch s.Name {
			case anchorName:
				o.shared.anchor, found[anchorName] = s.Value, true
			case dynamicName:
				o.shared.dynamic, o.shared.dynamicBytes = s.Value, s.Size
			default:
				o.locals = append(o.locals, local{s.Name, s.Size})
			}
		}
	}
	for _, name := range []string{tableName, anchorName} {
		if !found[name] {
			return nil, errors.New("it has no symbol " + name)
		}
	}
	l := o.shared
	if l.begin > l.end || l.anchor >= l.begin || l.dynamic < l.begin || l.dynamic > l.end || l.dynamicBytes > l.end-l.dynamic {
		return nil, errors.New("its thread-local storage is not laid out as devicecode does")
	}
	return o, nil
}

// staticShared gives the bytes of __shared__ variables that a kernel has: those
// declared in its body, and all that are in no kernel's body.
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

// insideOf is how the symbol of a variable in the body of an extern "C" function
// begins (Itanium C++ ABI, "Mangling", local names).
func insideOf(function string) string { return fmt.Sprintf("_ZZ%d%sE", len(function), function) }
