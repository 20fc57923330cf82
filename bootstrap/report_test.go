package bootstrap

import (
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// TestReport checks which failures a rank reports to its launcher: the failures that it noticed itself, and of
// a group that does not form the failures of which another rank is the cause.
func TestReport(t *testing.T) {
	const self, other = 1, 2
	b := group(t, 3)[self]
	l, err := watch.Listen(b.Group())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv(watch.Env, l.Name())
	o := Options{Rank: self, ID: UniqueID{group: b.Group()}}
	for _, c := range []struct {
		name   string
		report func()
		rank   int // that is named, or NoRank
	}{
		{"noticed by another", func() { b.report(watch.Lost(other, self, "")) }, mscclgo.NoRank},
		{"noticed here", func() { b.report(watch.Lost(self, other, "")) }, other},
		{"of another kind", func() { o.report(watch.About(self, mscclgo.ErrTimeout, other, "")) }, mscclgo.NoRank},
		{"of the rendezvous", func() { o.report(watch.Lost(self, toRendezvous, "")) }, mscclgo.NoRank},
		{"of this rank", func() { o.report(watch.Lost(toRendezvous, self, "")) }, mscclgo.NoRank},
		{"of another", func() { o.report(watch.Lost(toRendezvous, other, "")) }, other},
	} {
		got := mscclgo.NoRank
		c.report()
		if r, ok := l.First(); ok {
			got = int(r.Rank)
		}
		testcmp.Equal(t, c.name, got, c.rank)
		watch.Send(watch.Report{Group: b.Group(), Rank: watch.Forget})
	}
}
