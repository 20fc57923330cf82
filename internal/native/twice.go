package native

import "fmt"

// Twice returns what an error that names two devices, which are not one, has to add if their names are alike.
func Twice(a, b fmt.Stringer) string {
	if a.String() != b.String() {
		return ""
	}
	return ", which was opened twice, as each group does: use what was made of one gpu.Device or group"
}
