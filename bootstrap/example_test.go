package bootstrap_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	"github.com/mscclgo/mscclgo/bootstrap"
)

// Two ranks of one process. In real life each is a process of its own, and gets
// the id's text from whoever started it.
func Example() {
	rendezvous, err := bootstrap.NewRendezvous("127.0.0.1:0", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer rendezvous.Close()
	text := rendezvous.ID().String()

	run := func(rank int) error {
		ctx := context.Background()
		id, err := bootstrap.ParseUniqueID(text)
		if err != nil {
			return err
		}
		b, err := bootstrap.Connect(ctx, bootstrap.Options{Rank: rank, Size: 2, ID: id})
		if err != nil {
			return err
		}
		defer b.Close()
		names, err := b.AllGather(ctx, fmt.Appendf(nil, "rank %d of %d", b.Rank(), b.Size()))
		if err != nil {
			return err
		}
		if rank == 0 {
			fmt.Printf("%s\n", names)
			return b.Send(ctx, 1, 42, []byte("hello"))
		}
		greeting, err := b.Recv(ctx, 0, 42)
		fmt.Printf("%s\n", greeting)
		return err
	}
	var ranks sync.WaitGroup
	for rank := range 2 {
		ranks.Go(func() {
			if err := run(rank); err != nil {
				log.Print(err)
			}
		})
	}
	ranks.Wait()
	// Output:
	// [rank 0 of 2 rank 1 of 2]
	// hello
}
