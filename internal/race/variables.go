package race

import (
	"debug/dwarf"
	"encoding/binary"
)

// variable is a variable of a module, by its address there.
type variable struct {
	name          string
	address, size uint64
}

// variable returns the variable at an address of the module.
func (c *code) variable(address uint64) (variable, bool) {
	if c == nil {
		return variable{}, false
	}
	for r := c.data.Reader(); ; {
		e, err := r.Next()
		if err != nil || e == nil {
			return variable{}, false
		}
		if v, ok := c.placed(e); ok && address-v.address < v.size {
			return v, true
		}
	}
}

// placed returns what an entry tells of a variable with a fixed address.
func (c *code) placed(e *dwarf.Entry) (v variable, ok bool) {
	const opAddr = 0x03 // DWARF version 5, section 7.7.1
	at, _ := e.Val(dwarf.AttrLocation).([]byte)
	if e.Tag != dwarf.TagVariable || len(at) != 9 || at[0] != opAddr {
		return v, false
	}
	v.address = binary.LittleEndian.Uint64(at[1:])
	// The definition of what was declared before has no name and type of its own.
	for e != nil {
		if name, ok := e.Val(dwarf.AttrName).(string); ok && v.name == "" {
			v.name = name
		}
		if offset, ok := e.Val(dwarf.AttrType).(dwarf.Offset); ok && v.size == 0 {
			if t, err := c.data.Type(offset); err == nil {
				v.size = uint64(max(t.Size(), 0))
			}
		}
		e = c.declared(e)
	}
	return v, v.name != "" && v.size > 0
}

// declared returns the entry of an entry's declaration, or nil.
func (c *code) declared(e *dwarf.Entry) *dwarf.Entry {
	offset, ok := e.Val(dwarf.AttrSpecification).(dwarf.Offset)
	if !ok {
		return nil
	}
	r := c.data.Reader()
	r.Seek(offset)
	d, _ := r.Next()
	return d
}
