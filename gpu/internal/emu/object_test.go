package emu

import (
	"os"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// FuzzParseObject feeds the reader of modules' symbols with ELF files of all
// sorts.
func FuzzParseObject(f *testing.F) {
	self := testerr.Must(os.ReadFile("/proc/self/exe"))(f)
	f.Add([]byte{})
	f.Add(self[:4096])
	f.Add([]byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\x00\x3e\x00\x01\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := parseObject(data)
		if err != nil {
			return
		}
		l := o.shared
		if l.anchor >= l.begin || l.begin > l.end {
			t.Fatalf("accepted the layout %+v", l)
		}
	})
}

func TestStaticShared(t *testing.T) {
	o := object{locals: []local{{"_ZZ3oneE1s", 10}, {"_ZZ3twoE1s", 20}, {"_ZZ6helperPfE1s", 100}, {"_ZN2ns4roomE", 200}}}
	for kernel, want := range map[string]int{"one": 310, "two": 320, "three": 300} {
		if got := o.staticShared(kernel, []string{"one", "two", "three"}); got != want {
			t.Errorf("%s has %d bytes, want %d", kernel, got, want)
		}
	}
}
