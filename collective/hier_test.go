package collective

import (
	"slices"
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
		if sorted := placeOf(rank, byTwins(rank, hosts)).peers; !slices.IsSorted(sorted) || len(sorted) != len(want.peers) {
			t.Errorf("rank %d has channels to %v, in this order of the hosts", rank, sorted)
		}
	}
}
