// Testsummary reads the output of "go test -json" and prints a summary: a line for each
// package, and the output of failed tests. At the end it lists the skipped and failed tests,
// each with the reason, the ten slowest, and how many passed, failed and were skipped. It
// exits with 1 if anything failed, or if no test of a package was selected.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

func main() {
	failed, err := summarize(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsummary:", err)
	}
	if failed || err != nil {
		os.Exit(1)
	}
}

// event is one line of go test -json, as cmd/test2json documents it.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64 // seconds
}

// test names a test, or with an empty Name a package.
type test struct{ Package, Name string }

// summary is the state of what has been read.
type summary struct {
	out             io.Writer
	running         map[test][]string // the output of tests that have not ended
	skipped         map[string][]test // by reason
	failures        []failure         // in the order in which they ended
	ended           []timed           // tests that are not part of another
	passed, failed  int
	skips, packages int
	anyFailed       bool
}

// failure is a test that failed, and its first error.
type failure struct {
	test
	reason string
}

// timed is a test that has ended, and the seconds that it took.
type timed struct {
	test
	seconds float64
}

func (f failure) isParentOf(other failure) bool {
	return f.Package == other.Package && strings.HasPrefix(other.Name, f.Name+"/")
}

func summarize(in io.Reader, out io.Writer) (failed bool, err error) {
	s := &summary{out: out, running: map[test][]string{}, skipped: map[string][]test{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		if len(line) > 0 && json.Unmarshal(line, &e) == nil {
			s.add(e)
		} else {
			out.Write(line) // of go test itself
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return true, err
		}
	}
	if s.packages == 0 {
		return true, fmt.Errorf("no package's tests were run")
	}
	s.print()
	return s.anyFailed, nil
}

func (s *summary) add(e event) {
	t := test{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		io.WriteString(s.out, e.Output)
	case "build-fail":
		s.anyFailed = true
	case "output":
		if e.Test != "" {
			s.running[t] = append(s.running[t], e.Output)
		} else if e.Output != "PASS\n" && e.Output != "FAIL\n" {
			io.WriteString(s.out, e.Output)
			// A stale pattern of -run must not be taken for success.
			s.anyFailed = s.anyFailed || e.Output == nothingRan
		}
	case "pass", "fail", "skip":
		s.end(t, e.Action, e.Elapsed)
	}
}

// nothingRan is the output of a package's test program if no test was selected.
const nothingRan = "testing: warning: no tests to run\n"

// end counts a test or package that has ended after some seconds.
func (s *summary) end(t test, action string, seconds float64) {
	output := s.running[t]
	delete(s.running, t)
	if action == "fail" {
		s.anyFailed = true
		io.WriteString(s.out, strings.Join(output, ""))
	}
	if t.Name == "" {
		s.packages++
		s.printUnfinished(t.Package)
		return
	}
	if !strings.Contains(t.Name, "/") {
		s.ended = append(s.ended, timed{t, seconds})
	}
	switch action {
	case "pass":
		s.passed++
	case "fail":
		s.failed++
		s.failures = append(s.failures, failure{t, firstError(output)})
	case "skip":
		s.skips++
		r := reason(output)
		s.skipped[r] = append(s.skipped[r], t)
	}
}

// printUnfinished prints the output of tests that had not ended with their process.
func (s *summary) printUnfinished(pkg string) {
	for t, output := range s.running {
		if t.Package == pkg {
			io.WriteString(s.out, strings.Join(output, ""))
			s.failures = append(s.failures, failure{t, "its process ended"})
			delete(s.running, t)
		}
	}
}

// firstError returns the first line that a test wrote itself, without the place in the source, or else
// the last one of its output.
func firstError(output []string) string {
	for _, line := range output {
		if _, after, ok := strings.Cut(line, "_test.go:"); ok {
			if _, text, ok := strings.Cut(after, ": "); ok {
				return strings.TrimSpace(text)
			}
		}
	}
	return reason(output)
}

// reason returns why a test skipped itself: the last line of its output that is not
// from go test, without the place in the source.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		if _, after, ok := strings.Cut(line, ".go:"); ok {
			if _, text, ok := strings.Cut(after, ": "); ok {
				return text
			}
		}
		return line
	}
	return noReason
}

const noReason = "no reason given"

func (s *summary) print() {
	for _, r := range slices.Sorted(maps.Keys(s.skipped)) {
		fmt.Fprintf(s.out, "skipped: %s\n", r)
		for _, t := range s.skipped[r] {
			fmt.Fprintf(s.out, "    %s %s\n", t.Package, t.Name)
		}
	}
	slices.SortStableFunc(s.ended, func(a, b timed) int { return cmp.Compare(b.seconds, a.seconds) })
	for _, t := range s.ended[:min(len(s.ended), 10)] {
		if t.seconds > 0 {
			fmt.Fprintf(s.out, "%6.1f s  %s %s\n", t.seconds, t.Package, t.Name)
		}
	}
	// The failures come last, since a log is often seen by its end alone.
	for _, f := range s.failures {
		if f.reason == noReason && slices.ContainsFunc(s.failures, f.isParentOf) {
			continue
		}
		fmt.Fprintf(s.out, "failed: %s %s: %s\n", f.Package, f.Name, f.reason)
	}
	fmt.Fprintf(s.out, "%d passed, %d failed, %d skipped\n", s.passed, s.failed, s.skips)
}
