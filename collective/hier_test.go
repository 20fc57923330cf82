package collective

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPlaceOf(t *testing.T) {
	hosts := [][]int{{0, 3, 4}, {1, 2}, {5, 6, 7}}
	for rank, want := range []place{
		{3, 0, 2, []int{1, 5}}, {3, 1, 2, []int{0, 5}}, {3, 1, 2, []int{3, 6}}, {3, 0, 2, []int{2, 6}},
		{3, 0, 2, []int{}}, {3, 2, 2, []int{0, 1}}, {3, 2, 2, []int{3, 2}}, {3, 2, 2, []int{}},
	} {
		if diff := cmp.Diff(want, placeOf(rank, hosts), cmp.AllowUnexported(place{})); diff != "" {
			t.Errorf("rank %d is elsewhere (-want +got):\n%s", rank, diff)
		}
	}
}
