// Mutants checks the tests: it makes one fault at a time in the code, a changed line, and
// runs the tests that should find it. The faults are in faults.txt.
//
//	go run ./internal/test/mutants -o build/mutants.txt -resume
//
// The tree is never touched: the go command compiles the changed file instead of the
// tree's (-overlay). A test that fails without a fault makes every result worthless, so
// run "make test" first.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(0)
	var r runner
	path := flag.String("table", "internal/test/mutants/faults.txt", "`file` of the faults")
	generating := flag.Bool("generate", false, "print a table of -n faults, made from -seed, instead of running")
	seed := flag.Uint64("seed", 1, "of -generate")
	n := flag.Int("n", 60, "faults of -generate")
	only := flag.String("only", "", "`numbers` of faults, separated by commas; all by default")
	out := flag.String("o", "", "`file` to append a line of each result to")
	resume := flag.Bool("resume", false, "run no fault that has a result in the file of -o")
	flag.BoolVar(&r.long, "long", false, "run the tests in full, as make test-long does")
	flag.BoolVar(&r.quick, "quick", false, "run only the tests that are named for a fault, which takes seconds")
	flag.DurationVar(&r.timeout, "timeout", 10*time.Minute, "of the tests of a package; a test that takes longer has found the fault")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	check(err)
	check(os.Chdir(strings.TrimSpace(string(root))))
	text, err := os.ReadFile(*path)
	check(err)
	t, err := parse(string(text))
	check(err)
	if *generating {
		check(generate(ctx, t, *seed, *n))
		return
	}
	old := map[string]string{} // results by fault
	if *resume {
		text, _ := os.ReadFile(*out) // none at first
		for line := range strings.Lines(string(text)) {
			key, result, _ := strings.Cut(strings.TrimSpace(line), "\t")
			old[key] = result
		}
	}
	counts := map[string]map[string]int{}
	for _, f := range t.faults {
		if *only != "" && !slices.Contains(strings.Split(*only, ","), strconv.Itoa(f.number)) {
			continue
		}
		result := old[f.key()]
		if !strings.HasPrefix(result, "found") && !strings.HasPrefix(result, "SURVIVED") {
			if result = r.run(ctx, t, f); ctx.Err() != nil {
				break
			}
			line := f.key() + "\t" + result + "\n"
			fmt.Print(line)
			if *out != "" {
				file, err := os.OpenFile(*out, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
				check(err)
				_, err = file.WriteString(line)
				check(errors.Join(err, file.Close()))
			}
		}
		if counts[f.area] == nil {
			counts[f.area] = map[string]int{}
		}
		status, _, _ := strings.Cut(result, " ")
		counts[f.area][strings.TrimSuffix(status, ":")]++
	}
	fmt.Printf("\n%-14s %8s %8s %8s %8s %8s\n", "area", "found", "SURVIVED", "skipped", "gone", "broken")
	for _, a := range t.areas {
		c := counts[a.name]
		fmt.Printf("%-14s %8d %8d %8d %8d %8d\n", a.name, c["found"], c["SURVIVED"], c["skipped"], c["gone"], c["broken"])
	}
}

func check(err error) {
	if err != nil {
		log.Fatal("mutants: ", err)
	}
}
