package collective

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/bytesize"
)

//go:embed tuning.txt
var defaultTuning string

// Tuning is how to do which collective at which size. [DefaultTuning] is built
// in; mscclgo bench -tune measures one.
type Tuning struct {
	Rules []Rule
}

// byModel is what a rule has in the place of an algorithm to leave it to the model of time's
// choices (see ByModel of inside.Kind), with the rule's grid. Where the machine's links are unknown the rule is
// passed over.
const byModel = "model"

// Rule is a line of a [Tuning]. The first that matches counts. Its Algorithm may be "model",
// which is the one that has the least time by the model, or within a tenth of it.
type Rule struct {
	Link  string // between the ranks, of [Runner.Link]: "nvlink", "emulated" or "other"; or "*" for any
	Kind  Kind
	Ranks int // 0 for any number
	// MostRanks makes a range of Ranks, its least number, and is its largest; 0 is for Ranks alone.
	MostRanks int
	UpTo      uint64 // bytes of the collective's size; the largest value for any
	Choice
	// Within is for runners that bound their blocks to so many, or fewer (Options.MaxBlocks);
	// 0 for all runners.
	Within int
}

// NVLink is the link of ranks whose GPUs all have NVLinks, by which the ranks of a host all reach
// each other.
const NVLink = "nvlink"

// The links of other ranks.
const (
	emulatedLink = "emulated"
	otherLink    = "other"
)

// DefaultTuning returns the built-in tuning.
func DefaultTuning() (*Tuning, error) { return ReadTuning(strings.NewReader(defaultTuning)) }

// maxRules bounds what ReadTuning takes.
const maxRules = 10000

// ReadTuning reads a tuning: a rule a line, with the columns of [Rule], "*" for
// any link, ranks or size, and such as "5-8" for a range of ranks. The last column, Within, may be
// left out. Lines that start with # are comments.
//
// Errors: ErrInvalid, naming the line that makes no sense; ErrSystem if r cannot be read.
func ReadTuning(r io.Reader) (*Tuning, error) {
	t := &Tuning{}
	lines := bufio.NewScanner(r)
	n := 1
	for ; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		rule, err := parseRule(strings.Fields(line))
		if err == nil && len(t.Rules) == maxRules {
			err = fmt.Errorf("more than %d rules", maxRules)
		}
		if err != nil {
			return nil, mscclgo.Errorf(mscclgo.ErrInvalid, "collective: read a tuning", "line %d: %w", n, err)
		}
		t.Rules = append(t.Rules, rule)
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, "collective: read a tuning", "line %d: it has more than %d bytes; a rule is short", n, bufio.MaxScanTokenSize-1)
	case err != nil:
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, "collective: read a tuning", "%w", err)
	}
	return t, nil
}

func parseRule(columns []string) (Rule, error) {
	const most = 1 << 16 // blocks, threads and ranks
	if len(columns) != 7 && len(columns) != 8 {
		return Rule{}, fmt.Errorf("it has %d columns, a rule has 7 or 8", len(columns))
	}
	rule := Rule{Link: columns[0]}
	if links := []string{NVLink, emulatedLink, otherLink, "*"}; !slices.Contains(links, rule.Link) {
		return Rule{}, fmt.Errorf("link %q is none of %s", rule.Link, strings.Join(links, ", "))
	}
	kind, err := ParseKind(columns[1])
	if err != nil {
		return Rule{}, err
	}
	rule.Kind, rule.Algorithm = kind, columns[4]
	if _, err := kind.algorithm(rule.Algorithm); err != nil && rule.Algorithm != byModel {
		return Rule{}, err
	}
	type number struct {
		text string
		to   *int
	}
	numbers := []number{{columns[5], &rule.Blocks}, {columns[6], &rule.Threads}}
	if columns[2] != "*" {
		least, largest, isRange := strings.Cut(columns[2], "-")
		numbers = append(numbers, number{least, &rule.Ranks})
		if isRange {
			numbers = append(numbers, number{largest, &rule.MostRanks})
		}
	}
	if len(columns) == 8 {
		numbers = append(numbers, number{columns[7], &rule.Within})
	}
	for _, field := range numbers {
		if *field.to, err = strconv.Atoi(field.text); err != nil || *field.to < 1 || *field.to > most {
			return Rule{}, fmt.Errorf("%q is not a number from 1 to %d", field.text, most)
		}
	}
	if rule.MostRanks != 0 && rule.MostRanks < rule.Ranks {
		return Rule{}, fmt.Errorf("the range of ranks %s ends before it starts", columns[2])
	}
	if columns[3] == "*" {
		rule.UpTo = math.MaxUint64
		return rule, nil
	}
	if rule.UpTo, err = bytesize.Parse(columns[3]); err != nil {
		return Rule{}, err
	}
	return rule, nil
}

// Write writes the tuning as ReadTuning reads it.
func (t *Tuning) Write(w io.Writer) error {
	for _, r := range t.Rules {
		ranks, upTo := "*", "*"
		if r.Ranks != 0 {
			ranks = fmt.Sprint(r.Ranks)
		}
		if r.MostRanks != 0 {
			ranks += fmt.Sprintf("-%d", r.MostRanks)
		}
		if r.UpTo != math.MaxUint64 {
			upTo = bytesize.Format(r.UpTo)
		}
		within := ""
		if r.Within != 0 {
			within = fmt.Sprintf(" %6d", r.Within)
		}
		if _, err := fmt.Fprintf(w, "%-7s %-15s %5s %6s %-13s %3d %4d%s\n", r.Link, r.Kind, ranks, upTo, r.Algorithm, r.Blocks, r.Threads, within); err != nil {
			return err
		}
	}
	return nil
}

// sum returns a hash of the tuning.
func (t *Tuning) sum() uint64 {
	h := fnv.New64a()
	t.Write(h) // never fails
	return h.Sum64()
}

// Choose returns the choice for a collective of so many bytes, or false where no
// rule matches. fits reports whether a choice is possible; a rule whose choice is not
// is passed over, and so are rules that leave it to the model, and rules with a Within.
func (t *Tuning) Choose(link string, kind Kind, ranks int, bytes uint64, fits func(Choice) bool) (Choice, bool) {
	return t.choose(link, nil, kind, ranks, bytes, 0, fits)
}

// choose is Choose with the rules for links, or nil if they are unknown, with at most so many blocks, or 0.
func (t *Tuning) choose(link string, links *linkRules, kind Kind, ranks int, bytes uint64, most int, fits func(Choice) bool) (Choice, bool) {
	for _, r := range t.Rules {
		if most > 0 {
			r.Blocks = min(r.Blocks, most)
		}
		choices := []Choice{r.Choice}
		switch {
		case !r.matches(link, kind, ranks, bytes, most):
			continue
		case r.Algorithm == byModel:
			choices = links.choices(kind, bytes, r.Choice)
		}
		if i := slices.IndexFunc(choices, fits); i >= 0 {
			return choices[i], true
		}
	}
	return Choice{}, false
}

// matches reports whether the rule is for a collective of so many bytes, with at most so many
// blocks, or 0.
func (r *Rule) matches(link string, kind Kind, ranks int, bytes uint64, most int) bool {
	return (r.Within == 0 || most != 0 && most <= r.Within) && (r.Link == "*" || r.Link == link) &&
		(r.Ranks == 0 || r.Ranks <= ranks && ranks <= max(r.Ranks, r.MostRanks)) && r.Kind == kind && bytes <= r.UpTo
}
