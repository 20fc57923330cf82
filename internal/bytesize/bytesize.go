// Package bytesize reads and writes numbers of bytes as people do.
package bytesize

import (
	"math/bits"
	"strconv"
	"strings"

	"github.com/mscclgo/mscclgo"
)

// The letters of sizes, each 1024 times the one before.
const letters = "KMGT"

// Parse reads a number of bytes, such as 1000, 64K or 1G: at least 1, and below
// 256 TiB.
//
// Errors: ErrInvalid for anything else.
func Parse(text string) (uint64, error) {
	number, shift := text, 0
	if n := len(text); n > 0 {
		if i := strings.IndexByte(letters, text[n-1]&^0x20); i >= 0 {
			number, shift = text[:n-1], 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil || n == 0 || bits.Len64(n)+shift > 48 {
		return 0, mscclgo.Errorf(mscclgo.ErrInvalid, "collective: parse", "%q is not a size, such as 1000, 64K or 1G", text)
	}
	return n << shift, nil
}

// Format writes a number of bytes as Parse reads it, with a letter where
// that loses nothing.
func Format(n uint64) string {
	letter := ""
	for i := 0; i < len(letters) && n >= 1024 && n%1024 == 0; i++ {
		n, letter = n/1024, letters[i:i+1]
	}
	return strconv.FormatUint(n, 10) + letter
}
