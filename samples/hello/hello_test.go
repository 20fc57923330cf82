package main

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

func TestHello(t *testing.T) {
	for _, ranks := range []int{1, 2, 3, 4} {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			testgroup.Run(t, ranks, communicator.Options{}, allReduce)
		})
	}
}

// TestLines holds the whole program, kernel and Go, to what fits on two pages.
func TestLines(t *testing.T) {
	const most = 120
	lines := 0
	for _, name := range []string{"hello.cu", "main.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Skipf("the sources are not here: %v", err)
		}
		lines += bytes.Count(text, []byte("\n"))
	}
	if lines > most {
		t.Errorf("%d lines, at most %d are allowed", lines, most)
	}
}
