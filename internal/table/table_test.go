package table_test

import (
	"os"
	"time"

	"github.com/mscclgo/mscclgo/internal/table"
)

func Example() {
	table.Header(os.Stdout)
	table.Row{Bytes: 4 << 20, Count: 1 << 20, Type: "f32", Op: "sum", Algo: "direct", Place: "in", Time: 20 * time.Microsecond, Bus: 1.5}.Print(os.Stdout)
	// Output:
	//         size        count  type   op     algo place         time     algbw     busbw  #wrong
	//          (B)   (elements)                                   (us)    (GB/s)    (GB/s)
	//      4194304      1048576   f32  sum   direct    in        20.00    209.72    314.57       0
}
