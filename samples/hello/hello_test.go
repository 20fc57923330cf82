package main

import (
	"fmt"
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
