package ethernet

import (
	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/connection/internal/target"
)

// target returns the memory that a frame writes to or reads. All of the frame must lie inside
// it.
func (t *Transport) target(f *message.Frame) (*target.Memory, error) {
	return t.rank.Targets.Find(f.Memory, f.Offset, f.Size(), f.Kind.Word())
}
