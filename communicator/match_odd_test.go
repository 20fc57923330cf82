package communicator

import (
	"testing"

	"github.com/mscclgo/mscclgo"
)

func TestOddOne(t *testing.T) {
	for _, c := range []struct {
		texts [4]string
		want  int
	}{
		{[4]string{"a", "a", "b", "a"}, 12},
		{[4]string{"a", "", "b", "a"}, 12},
		{[4]string{"b", "a", "a", "a"}, 10},
		{[4]string{"a", "", "b", ""}, mscclgo.NoRank},
		{[4]string{"a", "a", "b", "b"}, mscclgo.NoRank},
		{[4]string{"a", "b", "c", "d"}, mscclgo.NoRank},
		{[4]string{"a", "a", "a", "a"}, mscclgo.NoRank},
		{[4]string{"a", "a", "b", "c"}, mscclgo.NoRank},
		{[4]string{}, mscclgo.NoRank},
	} {
		if got := oddOne([]int{10, 11, 12, 13}, c.texts[:]); got != c.want {
			t.Errorf("of %q rank %d is odd, want %d", c.texts, got, c.want)
		}
	}
}
