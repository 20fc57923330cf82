// Package doctor finds out what of mscclgo works on a machine, what does not and why, and
// what mends it.
package doctor

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/machine"
	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/show"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/topology"
)

// State is the result of a check.
type State string

// The results of a check.
const (
	OK      State = "ok"
	Absent  State = "absent"  // this machine does not have it, which is no fault
	Warning State = "warning" // all works, or may; but slower, or not for large groups
	Failed  State = "failed"  // something that this machine has does not work
)

// Finding is the result of one check.
type Finding struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	Text  string `json:"text"`
	Mend  string `json:"mend,omitempty"` // a command, or what to do
}

// System is what the checks look at.
type System struct {
	Root     fs.FS                      // the file system, from /
	Environ  []string                   // as os.Environ returns it
	Devices  func() ([]gpu.Info, error) // gpu.List
	Topology func() (*topology.Machine, error)
	// Ranks starts ranks on this machine that call Meet, on devices of a kind, and
	// returns what they found.
	Ranks func(ctx context.Context, n int, device string) (Finding, error)
}

// check is one of the checks: its name, and what makes its finding.
type check struct {
	name string
	run  func(*examination) Finding
}

// checks are all checks, in the order of the report.
var checks = []check{
	{"cuda", (*examination).cuda},
	{"peer-access", (*examination).peerAccess},
	{"emulation", (*examination).emulation},
	{"cuda-compiler", (*examination).cudaCompiler},
	{"cache", (*examination).cache},
	{"ranks", (*examination).ranks},
	{"network", (*examination).network},
	{"infiniband", (*examination).infiniBand},
	{"gpu-direct", (*examination).gpuDirect},
	{"locked-memory", (*examination).lockedMemory},
	{"descriptors", (*examination).descriptors},
	{"address-space", (*examination).addressSpace},
	{"processes", (*examination).processes},
	{"memory", (*examination).memory},
	{"shared-memory", (*examination).sharedMemory},
	{"cpus", (*examination).cpus},
	{"numa", (*examination).numa},
	{"container", (*examination).container},
	{"environment", (*examination).environment},
}

// Names returns the names of all checks.
func Names() []string {
	var names []string
	for _, c := range checks {
		names = append(names, c.name)
	}
	return names
}

// examination is the state of one run of the checks.
type examination struct {
	ctx context.Context
	*System
	devices   []gpu.Info
	deviceErr error
	machine   *topology.Machine
}

// Report is what all checks have found.
type Report struct {
	Findings []Finding
	Machine  *topology.Machine // nil if it could not be read
}

// Examine makes all checks. What is required, by name, has failed if it is not OK.
func Examine(ctx context.Context, s *System, required []string) *Report {
	e := &examination{ctx: ctx, System: s}
	e.devices, e.deviceErr = s.Devices()
	var topologyErr error
	e.machine, topologyErr = s.Topology()
	if e.machine == nil {
		e.machine = &topology.Machine{}
	}
	r := &Report{}
	if topologyErr == nil {
		r.Machine = e.machine
	} else {
		r.Findings = append(r.Findings, Finding{"topology", Failed, topologyErr.Error(), "mount sysfs at /sys: mount -t sysfs sysfs /sys"})
	}
	for _, c := range checks {
		f := c.run(e)
		f.Name = c.name
		if f.State != OK && slices.Contains(required, c.name) {
			f.State = Failed
		}
		r.Findings = append(r.Findings, f)
	}
	return r
}

// Failed returns the names of the checks that have failed.
func (r *Report) Failed() (names []string) {
	for _, f := range r.Findings {
		if f.State == Failed {
			names = append(names, f.Name)
		}
	}
	return names
}

// Print writes the report for people.
func (r *Report) Print(w io.Writer) error {
	var b strings.Builder
	var rows [][]string
	for _, f := range r.Findings {
		state := string(f.State)
		for i, line := range append(strings.Split(f.Text, "\n"), mending(f)...) {
			if i > 0 {
				state, f.Name = "", ""
			}
			rows = append(rows, []string{state, f.Name, line})
		}
	}
	show.Table(&b, rows, 0)
	if r.Machine != nil {
		b.WriteString("\n" + machine.Text(r.Machine))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func mending(f Finding) []string {
	if f.Mend == "" {
		return nil
	}
	return []string{"-> " + f.Mend}
}

// ok, absent, warning and failed make findings.
func ok(format string, args ...any) Finding {
	return Finding{State: OK, Text: fmt.Sprintf(format, args...)}
}
func absent(format string, args ...any) Finding {
	return Finding{State: Absent, Text: fmt.Sprintf(format, args...)}
}
func warning(mend, format string, args ...any) Finding {
	return Finding{State: Warning, Text: fmt.Sprintf(format, args...), Mend: mend}
}
func failed(mend, format string, args ...any) Finding {
	return Finding{State: Failed, Text: fmt.Sprintf(format, args...), Mend: mend}
}

// ThisMachine returns the system that this process runs on. ranks is its Ranks.
func ThisMachine(ranks func(ctx context.Context, n int, device string) (Finding, error)) *System {
	return &System{
		Root:     os.DirFS("/"),
		Environ:  os.Environ(),
		Devices:  gpu.List,
		Topology: func() (*topology.Machine, error) { return topology.Discover(topology.Options{}) },
		Ranks:    ranks,
	}
}

// read returns the content of a small file without white space around it, or "".
func (e *examination) read(name string) string {
	f, err := e.Root.Open(strings.TrimPrefix(name, "/"))
	if err != nil {
		return ""
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

func (e *examination) exists(name string) bool {
	_, err := fs.Stat(e.Root, strings.TrimPrefix(name, "/"))
	return err == nil
}

// env returns a variable of the environment, or "".
func (e *examination) env(name string) string {
	for _, v := range e.Environ {
		if value, found := strings.CutPrefix(v, name+"="); found {
			return value
		}
	}
	return ""
}

// set reports whether a variable of the environment is set, perhaps to nothing.
func (e *examination) set(name string) bool {
	return slices.ContainsFunc(e.Environ, func(v string) bool { return strings.HasPrefix(v, name+"=") })
}

// gpus returns the devices that are GPUs.
func (e *examination) gpus() (gpus []gpu.Info) {
	for _, d := range e.devices {
		if d.PCIBusID != "" {
			gpus = append(gpus, d)
		}
	}
	return gpus
}

// sizeText writes a size for people.
func sizeText(n uint64) string {
	for i, unit := range []string{"TiB", "GiB", "MiB", "KiB"} {
		if size := uint64(1) << (40 - 10*i); n >= size {
			return fmt.Sprintf("%.4g %s", float64(n)/float64(size), unit)
		}
	}
	return fmt.Sprintf("%d B", n)
}
