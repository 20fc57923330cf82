package communicator

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCliques(t *testing.T) {
	for name, c := range map[string]struct {
		maps [][]byte
		want [][]int
	}{
		"one host":     {[][]byte{{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}, [][]int{{0, 1, 2}}},
		"none":         {[][]byte{{1, 0}, {0, 1}}, [][]int{{0}, {1}}},
		"interleaved":  {[][]byte{{1, 0, 1, 0}, {0, 1, 0, 1}, {1, 0, 1, 0}, {0, 1, 0, 1}}, [][]int{{0, 2}, {1, 3}}},
		"uneven":       {[][]byte{{1, 1, 0}, {1, 1, 0}, {0, 0, 1}}, [][]int{{0, 1}, {2}}},
		"a chain of 3": {[][]byte{{1, 1, 0}, {1, 1, 1}, {0, 1, 1}}, [][]int{{0, 1}, {2}}},
	} {
		if diff := cmp.Diff(c.want, cliques(c.maps)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
