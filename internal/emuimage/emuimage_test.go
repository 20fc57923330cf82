package emuimage_test

import (
	"fmt"
	"testing"

	"github.com/mscclgo/mscclgo/internal/emuimage"
	"github.com/mscclgo/mscclgo/internal/signature"
)

func Example() {
	image := emuimage.Seal([]byte("a shared object"))
	object, err := emuimage.Open(image)
	fmt.Printf("%s, %v\n", object, err)
	_, err = emuimage.Open(image[:len(image)-1])
	fmt.Println(err)
	// Output:
	// a shared object, <nil>
	// the checksum does not match: it was cut short or altered
}

func FuzzOpen(f *testing.F) {
	f.Add([]byte{})
	f.Add(emuimage.Seal([]byte("object")))
	f.Fuzz(func(t *testing.T, image []byte) {
		object, err := emuimage.Open(image)
		if _, described, _ := signature.Split(image); described != nil {
			return
		}
		if err == nil && string(emuimage.Seal(object)) != string(image) {
			t.Fatal("an image that opens is not what Seal makes of its object")
		}
	})
}
