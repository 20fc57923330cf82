package verbs_test

import (
	"fmt"

	"github.com/mscclgo/mscclgo/internal/verbs"
)

func ExampleBestGID() {
	gids := []verbs.GID{
		{Index: 0, Address: [16]byte{0: 0xfe, 1: 0x80, 15: 1}, V2: true},            // fe80::1
		{Index: 1, Address: [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 1}, V2: false}, // 10.0.0.1, RoCE v1
		{Index: 2, Address: [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 1}, V2: true},  // 10.0.0.1
	}
	best, ok := verbs.BestGID(gids)
	fmt.Println(best.Index, ok)
	// Output: 2 true
}
