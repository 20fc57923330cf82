package fdpass_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/mscclgo/mscclgo/internal/fdpass"
)

// One process answers with an open file, and another reads it.
func Example() {
	key := fdpass.Key{Group: [16]byte{1}, Secret: [32]byte{2}}
	server, err := fdpass.Listen(key, time.Minute, slog.Default(), func(request []byte, sameProcess bool) fdpass.Answer {
		read, write, err := os.Pipe()
		if err != nil {
			return fdpass.Answer{Body: []byte(err.Error())}
		}
		defer write.Close()
		fmt.Fprintf(write, "the content of %s", request)
		return fdpass.Answer{Body: []byte("a file"), File: read}
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = fdpass.Call(ctx, key, server.Name(), []byte("chapter 1"), func(a fdpass.Answer) error {
		content := make([]byte, 100)
		n, err := a.File.Read(content)
		fmt.Printf("%s: %s\n", a.Body, content[:n])
		return err
	})
	fmt.Println(err)
	// Output:
	// a file: the content of chapter 1
	// <nil>
}
