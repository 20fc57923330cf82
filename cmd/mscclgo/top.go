package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// top shows again and again how fast the ranks of running jobs make calls and launches.
func top(c *call) error {
	interval := c.flags.Duration("interval", time.Second, "`time` between two looks")
	n := c.flags.Int("n", 0, "`times` to print, after which it ends; 0 is until it is interrupted")
	if err := c.parse(); err != nil {
		return err
	}
	switch {
	case c.flags.NArg() > 1:
		return &usageError{"it takes one job at most"}
	case *interval < 10*time.Millisecond:
		return &usageError{"-interval is at least 10ms"}
	case *n < 0:
		return &usageError{"-n is not negative"}
	}
	ctx, end := interruptible(1 << 62)
	defer end()
	which := c.flags.Arg(0)
	before, err := look(which)
	if err != nil {
		return err
	}
	screen := ""
	if isTerminal(c.stdout) {
		screen = "\x1b[H\x1b[2J" // cursor to the top left, and erase
	}
	tick := time.NewTicker(*interval)
	defer tick.Stop()
	for i := 0; *n == 0 || i < *n; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := look(which)
		if errors.Is(err, errNoJob) && i > 0 {
			fmt.Fprintln(c.stdout, "the job has ended")
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := io.WriteString(c.stdout, screen); err != nil {
			return err
		}
		if err := now.print(c.stdout, before); err != nil {
			return err
		}
		before = now
	}
	return nil
}

// print writes the jobs with the rates since a view before.
func (v view) print(w io.Writer, before view) error {
	passed := v.at.Sub(before.at).Seconds()
	if len(v.jobs) == 0 {
		_, err := fmt.Fprintln(w, "no job runs here as this user")
		return err
	}
	for _, j := range v.jobs {
		var old psJob
		for _, b := range before.jobs {
			if b.ID == j.ID {
				old = b
			}
		}
		fmt.Fprintf(w, "job %s, %d ranks, for %v\n", j.ID, len(j.Ranks), v.at.Sub(j.Started).Round(time.Second))
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "RANK\tPID\tDEVICE\tSTATE\tCALLS/S\tLAUNCHES/S\tWAITS\tLONGEST\tCALL")
		for i, r := range j.Ranks {
			var was psRank
			if i < len(old.Ranks) {
				was = old.Ranks[i]
			}
			longest, waits := 0.0, r.waiting()
			for _, one := range waits {
				longest = max(longest, one.Seconds)
			}
			wait := "-"
			if longest > 0 {
				wait = time.Duration(longest * float64(time.Second)).Round(time.Millisecond).String()
			}
			fmt.Fprintf(t, "%d\t%d\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", r.Rank, r.PID, r.Device, r.State,
				rate(was.Call, r.Call, passed), rate(was.launched(), r.launched(), passed), len(waits), wait, shorten(r.call(), 70))
		}
		if err := t.Flush(); err != nil {
			return err
		}
		if j.Verdict != "" {
			fmt.Fprintf(w, "so far: %s\n", j.Verdict)
		}
		fmt.Fprintln(w)
	}
	return nil
}

// shorten returns the first n runes of a text at most.
func shorten(text string, n int) string {
	if r := []rune(text); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return text
}

// launched returns how many launches the rank has made on the streams that it shows.
func (r psRank) launched() (n uint64) {
	last := map[int]uint64{}
	for _, l := range r.Launches {
		last[l.Stream] = max(last[l.Stream], l.Number)
	}
	for _, number := range last {
		n += number
	}
	return n
}

// rate writes how fast a number grew. One that was not known, or began anew, has no rate.
func rate(before, now uint64, seconds float64) string {
	if before == 0 || now < before || seconds <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", float64(now-before)/seconds)
}
