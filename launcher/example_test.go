package launcher_test

import (
	"context"
	"fmt"
	"os"

	"github.com/mscclgo/mscclgo/launcher"
)

func ExampleRun() {
	code, err := launcher.Run(context.Background(), launcher.Options{
		Ranks:   2,
		Program: "/bin/sh",
		Args:    []string{"-c", "echo this is rank $RANK of $WORLD_SIZE"},
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
		Prefix:  true,
	})
	fmt.Println(code, err)
	// Unordered output:
	// [0] this is rank 0 of 2
	// [1] this is rank 1 of 2
	// 0 <nil>
}
