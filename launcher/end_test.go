package launcher

import "testing"

func TestListEnds(t *testing.T) {
	const term, bad = "was ended by SIGTERM", "exited with code 1"
	ends := []end{{5, term, 143}, {3, bad, 1}, {0, term, 143}, {2, term, 143}, {1, term, 143}}
	if got, want := listEnds(ends), "0-2,5 were ended by SIGTERM; 3 exited with code 1"; got != want {
		t.Errorf("listEnds = %q, want %q", got, want)
	}
}
