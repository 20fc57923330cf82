package collective

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPlaceOf(t *testing.T) {
	hosts := [][]int{{0, 3, 4}, {1, 2}, {5, 6, 7}}
	second := [][]int{{1, 2}, {0, 3, 4}, {5, 6, 7}} // by the second rank of each
	for rank, want := range []place{
		{hosts, 0, 2, []int{1, 5}}, {hosts, 1, 2, []int{0, 5}}, {second, 0, 2, []int{3, 6}}, {second, 1, 2, []int{2, 6}},
		{hosts, 0, 2, []int{}}, {hosts, 2, 2, []int{0, 1}}, {second, 2, 2, []int{2, 3}}, {hosts, 2, 2, []int{}},
	} {
		if diff := cmp.Diff(want, placeOf(rank, hosts), cmp.AllowUnexported(place{})); diff != "" {
			t.Errorf("rank %d is elsewhere (-want +got):\n%s", rank, diff)
		}
	}
}
