package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

func help(c *call) error {
	if err := c.parse(); err != nil {
		return err
	}
	switch names := c.flags.Args(); len(names) {
	case 0:
		return writeAll(c.stdout, listCommands)
	case 1:
		about, ok := find(names[0])
		if !ok {
			return &usageError{fmt.Sprintf("there is no command %q", names[0])}
		}
		// Only the command itself knows its flags.
		return newCall(about, []string{"-h"}, nil, c.stdout, c.stderr).runOrHelp()
	default:
		return &usageError{"it takes one command at most"}
	}
}

func listCommands(w io.Writer) {
	fmt.Fprint(w, "usage: mscclgo COMMAND [flags] [arguments]\n\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range commands() {
		fmt.Fprintf(t, "  %s\t%s\n", c.name, c.summary)
	}
	t.Flush()
	fmt.Fprint(w, "\n\"mscclgo help COMMAND\" describes one.\n")
}
