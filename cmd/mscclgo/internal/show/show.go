// Package show has what several commands write for people.
package show

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// Table writes rows in aligned columns, without spaces at the end of lines. The flags are of package
// tabwriter.
func Table(b *strings.Builder, rows [][]string, flags uint) {
	var aligned strings.Builder
	w := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', flags)
	for _, row := range rows {
		line := strings.Join(row, "\t")
		if flags&tabwriter.AlignRight != 0 { // which aligns what a tab ends
			line += "\t"
		}
		fmt.Fprintln(w, line)
	}
	w.Flush()
	for line := range strings.Lines(aligned.String()) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
}

// Count returns a number of things: "1 rank", "2 ranks".
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
