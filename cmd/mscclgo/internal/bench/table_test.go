package bench

import (
	"os"
	"time"
)

func Example_table() {
	printHeader(os.Stdout)
	tableRow{Bytes: 4 << 20, Count: 1 << 20, Type: "f32", Op: "sum", Algo: "direct", Blocks: 64, Place: "in", Time: 20 * time.Microsecond, Bus: 1.5}.print(os.Stdout)
	// Output:
	//         size        count  type   op         algo blocks place         time     algbw     busbw  #wrong
	//          (B)   (elements)                                              (us)    (GB/s)    (GB/s)
	//      4194304      1048576   f32  sum       direct     64    in        20.00    209.72    314.57       0
}

// Others that do the same follow, each with the row's time over theirs.
func Example_tableOfOthers() {
	printHeader(os.Stdout, "nccl")
	tableRow{Bytes: 1024, Count: 512, Type: "f16", Op: "sum", Algo: "oneShotLL8", Blocks: 4, Place: "out", Time: 2 * time.Microsecond, Bus: 1, Others: []tableOther{{8 * time.Microsecond, 0.25}}}.print(os.Stdout)
	// Output:
	//         size        count  type   op         algo blocks place         time     algbw     busbw  #wrong         nccl  ratio
	//          (B)   (elements)                                              (us)    (GB/s)    (GB/s)                 (us)
	//         1024          512   f16  sum   oneShotLL8      4   out         2.00      0.51      0.51       0         8.00   0.25
}
