package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/topology"
)

// fake is a machine for one check.
type fake struct {
	files   map[string]string
	environ []string
	devices []gpu.Info
	err     error // of listing the devices
	machine topology.Machine
}

var (
	onPCI   = map[string]string{"sys/bus/pci/devices/0000:1b:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:1b:00.0/class": "0x030200\n"}
	driver  = map[string]string{"proc/driver/nvidia/version": "NVRM version"}
	h200    = gpu.Info{Name: "cuda:0", Model: "NVIDIA H200", Arch: "sm_90", PCIBusID: "0000:1b:00.0", TotalMemory: 141 << 30, DriverVersion: "13.0"}
	rdma    = topology.NIC{Name: "mlx5_0", Kind: topology.RoCE}
	limits  = "Limit                     Soft Limit           Hard Limit           Units     \n"
	noLimit = limits + "Max locked memory         unlimited            unlimited            bytes     \n"
)

func merge(all ...map[string]string) map[string]string {
	merged := map[string]string{}
	for _, one := range all {
		for k, v := range one {
			merged[k] = v
		}
	}
	return merged
}

func limited(line string) map[string]string {
	return map[string]string{"proc/self/limits": limits + line + "\n"}
}

func TestChecks(t *testing.T) {
	for name, c := range map[string]struct {
		fake  fake
		check string
		state State
		says  string
	}{
		"no GPU":          {fake{}, "cuda", Absent, "no NVIDIA GPU"},
		"no driver":       {fake{files: onPCI}, "cuda", Failed, "1 NVIDIA GPU on PCI"},
		"hidden GPUs":     {fake{files: merge(onPCI, driver), environ: []string{"CUDA_VISIBLE_DEVICES="}}, "cuda", Failed, "leaves no GPU"},
		"container":       {fake{files: merge(onPCI, driver, map[string]string{".dockerenv": ""})}, "cuda", Failed, "this container has no GPU"},
		"no library":      {fake{files: merge(onPCI, driver)}, "cuda", Failed, "finds no GPU"},
		"broken driver":   {fake{files: merge(onPCI, driver), err: errors.New("CUDA_ERROR_SYSTEM_NOT_READY")}, "cuda", Failed, "NOT_READY"},
		"a GPU":           {fake{files: merge(onPCI, driver), devices: []gpu.Info{h200}}, "cuda", OK, "NVIDIA H200, sm_90, 141 GiB"},
		"a GPU of two":    {fake{files: merge(onPCI, driver, map[string]string{"sys/bus/pci/devices/0000:1c:00.0/vendor": "0x10de", "sys/bus/pci/devices/0000:1c:00.0/class": "0x030000"}), devices: []gpu.Info{h200}, environ: []string{"CUDA_VISIBLE_DEVICES=0"}}, "cuda", Warning, `1 more on PCI cannot be used by this process: CUDA_VISIBLE_DEVICES is "0"`},
		"one GPU's peers": {fake{devices: []gpu.Info{h200}}, "peer-access", Absent, "fewer than two"},

		"no RDMA":                  {fake{}, "infiniband", Absent, "no RDMA device"},
		"RDMA for no GPU":          {fake{machine: topology.Machine{NICs: []topology.NIC{rdma}}}, "gpu-direct", Absent, "it takes a GPU"},
		"RDMA out of order":        {fake{devices: []gpu.Info{h200}, machine: topology.Machine{NICs: []topology.NIC{rdma}}}, "gpu-direct", Warning, "kernels of cuda:0 do not see the writes of RDMA devices in their order"},
		"locked":                   {fake{files: limited("Max locked memory         65536                65536                bytes     "), machine: topology.Machine{NICs: []topology.NIC{rdma}}}, "locked-memory", Warning, "64 KiB"},
		"locked, no RDMA":          {fake{files: limited("Max locked memory         65536                65536                bytes     ")}, "locked-memory", OK, "64 KiB"},
		"not locked":               {fake{files: map[string]string{"proc/self/limits": noLimit}, machine: topology.Machine{NICs: []topology.NIC{rdma}}}, "locked-memory", OK, "no limit"},
		"few descriptors":          {fake{files: limited("Max open files            64                   64                   files     ")}, "descriptors", Failed, "64 open files"},
		"some descriptors":         {fake{files: limited("Max open files            256                  256                  files     ")}, "descriptors", Warning, "about 26 ranks"},
		"descriptors":              {fake{files: limited("Max open files            20000                20000                files     ")}, "descriptors", OK, "about 3316 ranks"},
		"address space":            {fake{files: limited("Max address space         2147483648           unlimited            bytes     ")}, "address-space", Warning, "2 GiB"},
		"address space, CUDA":      {fake{files: limited("Max address space         64000000000          unlimited            bytes     "), devices: []gpu.Info{h200}}, "address-space", Warning, "CUDA reserves"},
		"pids":                     {fake{files: map[string]string{"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/pids.max": "100", "sys/fs/cgroup/a/b/pids.max": "max"}}, "processes", Warning, "100 processes"},
		"pids, version 1":          {fake{files: map[string]string{"proc/self/cgroup": "8:pids:/\n4:memory:/x\n", "sys/fs/cgroup/pids/pids.max": "100"}}, "processes", Warning, "100 processes"},
		"memory":                   {fake{files: map[string]string{"proc/meminfo": "MemTotal:       24683348 kB\nMemFree: 1 kB"}}, "memory", OK, "23.54 GiB of the machine"},
		"little memory":            {fake{files: map[string]string{"proc/meminfo": "MemTotal:       24683348 kB\n", "proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "1073741824"}}, "memory", Warning, "1 GiB by the limit of this control group"},
		"little memory, version 1": {fake{files: map[string]string{"proc/meminfo": "MemTotal:       24683348 kB\n", "proc/self/cgroup": "4:memory:/x", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1073741824"}}, "memory", Warning, "1 GiB"},
		"unknown memory":           {fake{}, "memory", Warning, "unknown"},
		"quota":                    {fake{files: map[string]string{"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "50000 100000"}}, "cpus", Warning, "time for 0.5"},
		"no quota":                 {fake{files: map[string]string{"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}}, "cpus", OK, "for this process"},
		"far GPU":                  {fake{machine: topology.Machine{Nodes: make([]topology.Node, 2), GPUs: []topology.GPU{{Index: 3, NUMANode: topology.Unknown}}}}, "numa", Warning, "GPU 3"},
		"no container":             {fake{}, "container", OK, "none"},
		"Kubernetes":               {fake{environ: []string{"KUBERNETES_SERVICE_HOST=10.0.0.1"}}, "container", OK, "Kubernetes"},
		"variables":                {fake{environ: []string{"MSCCLGO_SECRET=abc", "MSCCLGO_TRANSPORTS=ethernet"}}, "environment", OK, "MSCCLGO_SECRET (not shown), MSCCLGO_TRANSPORTS=ethernet"},
		"misspelled":               {fake{environ: []string{"MSCCLGO_TRANSPORT=ethernet"}}, "environment", Warning, "nobody reads MSCCLGO_TRANSPORT:"},
	} {
		t.Run(name, func(t *testing.T) {
			root := fstest.MapFS{}
			for path, text := range c.fake.files {
				root[path] = &fstest.MapFile{Data: []byte(text)}
			}
			e := &examination{ctx: t.Context(), System: &System{Root: root, Environ: c.fake.environ}, devices: c.fake.devices, deviceErr: c.fake.err, machine: &c.fake.machine}
			i := slices.IndexFunc(checks, func(k check) bool { return k.name == c.check })
			f := checks[i].run(e)
			if f.State != c.state || !strings.Contains(f.Text, c.says) {
				t.Errorf("%s: %s, want %s and %q", f.State, f.Text, c.state, c.says)
			}
			if f.State == Failed && f.Mend == "" {
				t.Errorf("nothing is said that mends %q", f.Text)
			}
		})
	}
}

// TestNoCompiler finds no compiler for GPUs, on a machine without one.
func TestNoCompiler(t *testing.T) {
	t.Setenv("MSCCLGO_CUDA_COMPILER", "nvrtc")
	t.Setenv("MSCCLGO_NVRTC", t.TempDir())
	for want, devices := range map[State][]gpu.Info{Absent: nil, Failed: {h200}} {
		e := &examination{ctx: t.Context(), System: &System{}, devices: devices}
		f := e.cudaCompiler()
		if f.State != want || !strings.Contains(f.Mend, "pip install nvidia-cuda-nvrtc") || !strings.Contains(f.Mend, "MSCCLGO_NVRTC") {
			t.Errorf("%s: %s, want %s; it is mended by %q", f.State, f.Text, want, f.Mend)
		}
	}
}

// TestRoCE has Ethernet ports with an address and without.
func TestRoCE(t *testing.T) {
	const dir = "sys/class/infiniband/mlx5_0/ports/1/"
	table := func(gid string) fstest.MapFS {
		return fstest.MapFS{dir + "gids/0": {Data: []byte(gid + "\n")}, dir + "gid_attrs/types/0": {Data: []byte("RoCE v2\n")}}
	}
	for name, c := range map[string]struct {
		root       fs.FS
		interfaces []string
		ok         bool
		says       string
	}{
		"an address":                 {table("0000:0000:0000:0000:0000:ffff:c0a8:0101"), []string{"eth2"}, true, "RoCE v2, GID 0 192.168.1.1"},
		"no address":                 {table("::"), []string{"eth2"}, false, "ip addr add ADDRESS/24 dev eth2"},
		"no address, two interfaces": {table("::"), []string{"eth2", "eth3"}, false, "ip addr add ADDRESS/24 dev NAME"},
	} {
		t.Run(name, func(t *testing.T) {
			nic := topology.NIC{Name: "mlx5_0", Kind: topology.RoCE, Interfaces: c.interfaces}
			e := &examination{ctx: t.Context(), System: &System{Root: c.root}, machine: &topology.Machine{NICs: []topology.NIC{nic}}}
			text, ok, err := e.roce("mlx5_0", 1)
			testerr.Check(t, err)
			if ok != c.ok || !strings.HasSuffix(text, c.says) {
				t.Errorf("%v, %q, want %v, %q", ok, text, c.ok, c.says)
			}
		})
	}
}

// TestReport examines a machine of which one thing is required that it does not have.
func TestReport(t *testing.T) {
	s := &System{
		Root: fstest.MapFS{}, Devices: func() ([]gpu.Info, error) { return nil, nil },
		Topology: func() (*topology.Machine, error) { return nil, errors.New("no sysfs") },
		Ranks: func(_ context.Context, n int, device string) (Finding, error) {
			return Finding{State: Failed, Text: strconv.Itoa(n) + " on " + device, Mend: "mend"}, nil
		},
	}
	r := Examine(t.Context(), s, []string{"infiniband"})
	if failed := r.Failed(); !slices.Contains(failed, "infiniband") || !slices.Contains(failed, "topology") || !slices.Contains(failed, "ranks") || slices.Contains(failed, "cuda") {
		t.Errorf("%v have failed", failed)
	}
	var text bytes.Buffer
	testerr.Check(t, r.Print(&text))
	for _, want := range []string{"2 on emu", "-> mend", "failed", "no sysfs"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text lacks %q:\n%v", want, text.String())
		}
	}
	encoded := testerr.Must(json.Marshal(r))(t)
	var decoded struct{ Findings []Finding }
	testerr.Check(t, json.Unmarshal(encoded, &decoded))
	testcmp.Equal(t, "findings", decoded.Findings, r.Findings)
	text.Reset()
	r.Machine = &topology.Machine{CPUs: []int{0, 1, 2}}
	if err := r.Print(&text); err != nil || !strings.HasSuffix(text.String(), "\n\nNUMA  CPUs  distances\n-     0-2   -\n") {
		t.Errorf("%v, printed:\n%v", err, text.String())
	}
}

// TestMeet has ranks of one process write to each other's memory, mapped and not.
func TestMeet(t *testing.T) {
	for transports, want := range map[registeredmem.Transports]State{0: OK, registeredmem.Ethernet: Warning} {
		t.Run(transports.String(), func(t *testing.T) {
			testgroup.Run(t, 3, communicator.Options{Transports: transports}, func(ctx context.Context, c *communicator.Communicator) error {
				f, err := Meet(ctx, c, true)
				if f.State != want || !strings.Contains(f.Text, "wrote 64 KiB to each other, and it arrived") {
					t.Errorf("%s: %s, want %s", f.State, f.Text, want)
				}
				return err
			})
		})
	}
}

// TestVariables finds that doctor knows all variables that the code of the module reads.
func TestVariables(t *testing.T) {
	name := regexp.MustCompile(`^MSCCLGO_([A-Z_]+)$`)
	read := map[string]bool{}
	testerr.Check(t, filepath.WalkDir("../../../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "build" || d.Name() == "test" || d.Name() == "soak" || d.Name() == ".git" || d.Name() == "scripts") {
			if err == nil {
				err = fs.SkipDir
			}
			return err
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				if text, err := strconv.Unquote(literal.Value); err == nil {
					if m := name.FindStringSubmatch(text); m != nil {
						read[m[1]] = true
					}
				}
			}
			return true
		})
		return nil
	}))
	for v := range read {
		if !slices.Contains(variables, v) && !slices.ContainsFunc(ignored, func(p string) bool { return strings.HasPrefix(v, p) }) {
			t.Errorf("MSCCLGO_%s is read, and doctor does not know it", v)
		}
	}
	for _, v := range variables {
		if !read[v] {
			t.Errorf("doctor knows MSCCLGO_%s, which nothing reads", v)
		}
	}
}
