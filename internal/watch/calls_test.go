package watch

import "testing"

func TestOddCall(t *testing.T) {
	for _, c := range []struct {
		texts [4]string
		odd   int
		sure  bool
	}{
		{[4]string{"a", "a", "b", "a"}, 2, true},
		{[4]string{"a", "", "b", "a"}, 2, true},
		{[4]string{"b", "a", "a", "a"}, 0, true},
		{[4]string{"a", "", "b", ""}, 2, false},
		{[4]string{"", "a", "b", ""}, 2, false},
		{[4]string{"a", "a", "b", "b"}, 2, false},
		{[4]string{"a", "b", "a", "b"}, 1, false},
		{[4]string{"a", "b", "c", "d"}, 1, false},
		{[4]string{"a", "a", "a", "a"}, 0, false},
		{[4]string{"a", "a", "b", "c"}, 2, false},
		{[4]string{}, -1, false},
	} {
		if odd, sure := OddCall(c.texts[:]); odd != c.odd || sure != c.sure {
			t.Errorf("of %q rank %d is odd, %v; want %d, %v", c.texts, odd, sure, c.odd, c.sure)
		}
	}
}
