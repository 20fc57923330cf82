package testerr_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// teller is a test that keeps what it reports.
type teller struct {
	testing.TB
	wrong []string
}

func (*teller) Helper() {}
func (t *teller) Errorf(format string, args ...any) {
	t.wrong = append(t.wrong, fmt.Sprintf(format, args...))
}

func Example() {
	var t teller
	err := mscclgo.Errorf(mscclgo.ErrTimeout, "wait", "nothing came")
	testerr.Expect(&t, err, mscclgo.ErrTimeout, "wait", "nothing")
	testerr.Expect(&t, err, mscclgo.ErrTimeout, "rank 1")
	fmt.Println(t.wrong)
	// Output: ["wait: timeout: nothing came" does not say "rank 1"]
}

func TestOtherKinds(t *testing.T) {
	for _, err := range []error{nil, errors.New("timeout"), mscclgo.Errorf(mscclgo.ErrRemote, "wait", "it left")} {
		var seen teller
		testerr.Expect(&seen, err, mscclgo.ErrTimeout)
		if len(seen.wrong) != 1 {
			t.Errorf("of %v it tells %q", err, seen.wrong)
		}
	}
}
