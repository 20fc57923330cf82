package race

import (
	"bytes"
	"debug/dwarf"
	"debug/elf"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// code is a module with what its compiler tells debuggers.
type code struct {
	data  *dwarf.Data
	units []unit
}

type unit struct {
	entry *dwarf.Entry
	files []*dwarf.LineFile
}

func openCode(image []byte) (*code, error) {
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return nil, err
	}
	data, err := f.DWARF()
	if err != nil {
		return nil, err
	}
	c := &code{data: data}
	for r := data.Reader(); ; r.SkipChildren() {
		e, err := r.Next()
		if err != nil {
			return nil, err
		}
		if e == nil {
			return c, nil
		}
		if lines, err := data.LineReader(e); err == nil && lines != nil {
			c.units = append(c.units, unit{e, lines.Files()})
		}
	}
}

// Place returns the line of the call before an address of an image, as reports do.
func Place(image []byte, address uint64) string {
	c, err := openCode(image)
	if err != nil {
		return fmt.Sprintf("address %#x", address)
	}
	return c.place(address)
}

// place returns the line of the user's file that the call before an address is from, with
// the line of the library's header that it is in, if it is in one. Headers that stand for
// CUDA's do not count: users know what their functions do.
func (c *code) place(address uint64) string {
	frames := c.frames(address - 1)
	if len(frames) == 0 {
		return fmt.Sprintf("address %#x", address)
	}
	last := frames[len(frames)-1]
	frames = slices.DeleteFunc(frames, func(l line) bool { return emulated(l.file) })
	if len(frames) == 0 {
		return last.String()
	}
	for _, f := range frames {
		if !header(f.file) {
			if f == frames[0] {
				return f.String()
			}
			return fmt.Sprintf("%v (in %v)", f, frames[0])
		}
	}
	return frames[len(frames)-1].String()
}

// line is a line of a source.
type line struct {
	file   string
	number int
}

// header reports whether a file is one of the library's headers.
func header(file string) bool {
	return strings.Contains(file, "/mscclgo/") && !strings.HasSuffix(file, ".cu")
}

// emulated reports whether a file is one of the headers that stand for CUDA's.
func emulated(file string) bool {
	return header(file) && strings.HasPrefix(file[strings.LastIndex(file, "/mscclgo/"):], "/mscclgo/emu/")
}

func (l line) String() string {
	file := l.file
	if header(file) {
		file = file[strings.LastIndex(file, "/mscclgo/")+1:]
	} else if filepath.IsAbs(file) {
		file = filepath.Base(file)
	}
	return fmt.Sprintf("%s:%d", file, l.number)
}

// frames returns the lines of an address: its own, and the lines of the calls around it that
// were inlined, from the innermost on.
func (c *code) frames(pc uint64) []line {
	for _, u := range c.units {
		lines, err := c.data.LineReader(u.entry)
		if err != nil || lines == nil {
			continue
		}
		var at dwarf.LineEntry
		if lines.SeekPC(pc, &at) != nil {
			continue
		}
		frames := []line{{at.File.Name, at.Line}}
		calls := c.calls(u, pc)
		for i := len(calls) - 1; i >= 0; i-- {
			frames = append(frames, calls[i])
		}
		return frames
	}
	return nil
}

// calls returns where the inlined functions around an address were called, the outermost
// first.
func (c *code) calls(u unit, pc uint64) []line {
	var found []line
	r := c.data.Reader()
	r.Seek(u.entry.Offset)
	if _, err := r.Next(); err != nil {
		return nil
	}
	for depth := 1; depth > 0; {
		e, err := r.Next()
		if err != nil || e == nil {
			break
		}
		if e.Tag == 0 {
			depth--
			continue
		}
		descend := e.Tag == dwarf.TagNamespace
		if ranges, err := c.data.Ranges(e); err == nil {
			for _, within := range ranges {
				descend = descend || within[0] <= pc && pc < within[1]
			}
		}
		if descend && e.Tag == dwarf.TagInlinedSubroutine {
			file, _ := e.Val(dwarf.AttrCallFile).(int64)
			number, _ := e.Val(dwarf.AttrCallLine).(int64)
			if int(file) < len(u.files) && u.files[file] != nil {
				found = append(found, line{u.files[file].Name, int(number)})
			}
		}
		if e.Children {
			if descend || e.Tag == dwarf.TagLexDwarfBlock && len(found) > 0 {
				depth++
			} else {
				r.SkipChildren()
			}
		}
	}
	return found
}
