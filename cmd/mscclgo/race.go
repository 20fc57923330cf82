package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/mscclgo/mscclgo/internal/race"
	"github.com/mscclgo/mscclgo/launcher"
)

func runRace(c *call) error {
	n := c.flags.Int("n", 0, "`ranks` to start")
	most := c.flags.Int("most", 20, "races to print at `most`")
	limit := c.flags.Duration("timeout", 10*time.Minute, "`time` after which the ranks are ended")
	var memory sizeFlag
	c.flags.Var(&memory, "memory", "`size` of the memory that the finder may take, such as 16G (default half of what is free)")
	if err := c.parse(); err != nil {
		return err
	}
	if memory == 0 {
		memory = sizeFlag(race.Memory())
	}
	switch {
	case *n < 1:
		return &usageError{"say how many ranks to start, as in -n 4"}
	case *most < 1:
		return &usageError{"-most has to be above 0"}
	case *limit <= 0:
		return &usageError{"-timeout has to be above 0"}
	case c.flags.NArg() == 0:
		return &usageError{"say which program to run"}
	}
	arena, err := race.NewArena()
	if err != nil {
		return err
	}
	defer arena.Close()
	if err := race.Format(arena, uint64(memory)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), *limit)
	defer cancel()
	code, failed := launcher.Run(ctx, launcher.Options{
		Ranks:   *n,
		Program: c.flags.Arg(0),
		Args:    c.flags.Args()[1:],
		Env:     []string{fmt.Sprintf("%s=/proc/%d/fd/%d", race.Variable, os.Getpid(), arena.Fd()), "MSCCLGO_DEVICE=emu"},
		Stdin:   c.stdin,
		Stdout:  c.stdout,
		Stderr:  c.stderr,
		Prefix:  true,
		Logger:  slog.Default(),
	})
	if failed != nil && ctx.Err() != nil {
		failed = fmt.Errorf("the program has not ended in %v; -timeout gives it longer: %w", *limit, failed)
	}
	found, err := race.Read(arena)
	if err != nil {
		return errors.Join(failed, err)
	}
	for i, r := range found.Races {
		if i == *most {
			fmt.Fprintf(c.stdout, "and %d more; -most prints more\n", len(found.Races)-i)
			break
		}
		fmt.Fprintf(c.stdout, "%v\n\n", r)
	}
	for _, what := range found.Lost {
		fmt.Fprintf(c.stdout, "note: %s\n", what)
	}
	if failed != nil && found.Devices > 0 && len(found.Races) == 0 {
		failed = fmt.Errorf("%w; no races were seen; mscclgo explore looks for an order of the threads, or old values of memory, with which it fails", failed)
	}
	switch {
	case failed != nil:
		return &exitError{max(code, exitFailed), failed}
	case len(found.Races) > 0:
		races := "1 race: a pair"
		if n := len(found.Races); n > 1 {
			races = fmt.Sprintf("%d races: pairs", n)
		}
		return fmt.Errorf("%s of lines whose accesses nothing orders", races)
	case found.Devices == 0:
		return errors.New("the program opened no emulated device, so that nothing was watched; it has to be one of this library, and take its devices from the environment or by the name \"emu\"")
	}
	if len(found.Lost) > 0 {
		return &exitError{exitUnwatched, errors.New("no races in what was watched, which is not all")}
	}
	fmt.Fprintf(c.stdout, "no races\n")
	return nil
}
