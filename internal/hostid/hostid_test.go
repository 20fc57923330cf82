package hostid_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/hostid"
)

func Example() {
	os.Setenv(hostid.Env, "rack-3-host-7")
	defer os.Unsetenv(hostid.Env)
	id, err := hostid.Get()
	fmt.Println(id, err)
	// Output: rack-3-host-7 <nil>
}

func TestSameEveryTime(t *testing.T) {
	t.Setenv(hostid.Env, "")
	first, err := hostid.Get()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(hostid.Env, "elsewhere")
	if kernel, err := hostid.Kernel(); err != nil || kernel != first {
		t.Errorf("the kernel's identity is %q, %v, not %q", kernel, err, first)
	}
	t.Setenv(hostid.Env, "")
	second, err := hostid.Get()
	if err != nil || first != second {
		t.Errorf("%q, then %q, %v", first, second, err)
	}
	// A boot id alone has 36 bytes.
	if len(first) <= 36 || len(first) > hostid.MaxSize {
		t.Errorf("identity %q has %d bytes", first, len(first))
	}
}

func TestOverrideTooLong(t *testing.T) {
	t.Setenv(hostid.Env, strings.Repeat("x", hostid.MaxSize))
	if _, err := hostid.Get(); err != nil {
		t.Errorf("the longest identity: %v", err)
	}
	t.Setenv(hostid.Env, strings.Repeat("x", hostid.MaxSize+1))
	if _, err := hostid.Get(); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("one byte more: %v", err)
	}
}
