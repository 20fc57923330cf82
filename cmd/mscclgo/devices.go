package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/mscclgo/mscclgo/gpu"
)

func devices(c *call) error {
	if err := c.parseOnly(); err != nil {
		return err
	}
	infos, err := gpu.List()
	if err != nil {
		return err
	}
	return listDevices(c.stdout, infos)
}

func listDevices(w io.Writer, infos []gpu.Info) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "DEVICE\tARCH\tMULTIPROCESSORS\tMEMORY\tMODEL")
	for _, i := range infos {
		fmt.Fprintf(t, "%s\t%s\t%d\t%.1f GiB\t%s\n",
			i.Name, i.Arch, i.Multiprocessors, float64(i.TotalMemory)/(1<<30), i.Model)
	}
	return t.Flush()
}
