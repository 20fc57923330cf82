package topology

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/mscclgo/mscclgo"
)

const (
	fileFormat  = "mscclgo-machine"
	fileVersion = 1
	opRead      = "topology: read a machine"
)

// Bounds of what Read takes.
const (
	maxFile   = 8 << 20 // bytes
	maxNodes  = 1024
	maxGPUs   = 128
	maxLinks  = 256 // of a GPU
	maxNICs   = 256
	maxPorts  = 256
	maxNames  = 256 // interfaces of a NIC
	maxDepth  = 64  // bridges above a device
	maxName   = 1024
	maxListed = 4 << 20 // CPUs of all lists together
)

// The file. Lists of CPUs are as the kernel writes them, "0-31,64-95".
type (
	fileMachine struct {
		Format   string       `json:"format"`
		Version  int          `json:"version"`
		CPUs     string       `json:"cpus"`
		Nodes    []fileNode   `json:"numa_nodes"`
		GPUs     []fileGPU    `json:"gpus"`
		GPUError *fileError   `json:"gpu_error,omitempty"`
		NICs     []fileNIC    `json:"nics"`
		PCI      []fileDevice `json:"pci"`
	}
	fileNode struct {
		ID        int    `json:"id"`
		CPUs      string `json:"cpus"`
		Distances []int  `json:"distances,omitempty"`
	}
	fileGPU struct {
		Index   int         `json:"index"`
		UUID    string      `json:"uuid,omitempty"` // 32 hexadecimal digits
		Model   string      `json:"model,omitempty"`
		PCI     string      `json:"pci,omitempty"`
		NVLinks []fileLinks `json:"nvlinks,omitempty"`
		// Of a GPU without an address; otherwise the PCI device has these.
		Node *int   `json:"numa_node,omitempty"`
		CPUs string `json:"cpus,omitempty"`
	}
	fileLinks struct {
		Numbers string `json:"numbers"` // "0-17"
		Active  bool   `json:"active"`
		Version int    `json:"version,omitempty"`
		Peer    string `json:"peer,omitempty"`
		PeerPCI string `json:"peer_pci,omitempty"`
	}
	fileNIC struct {
		Name       string     `json:"name"`
		Kind       string     `json:"kind"`
		PCI        string     `json:"pci,omitempty"`
		Interfaces []string   `json:"interfaces,omitempty"`
		Ports      []filePort `json:"ports"`
	}
	filePort struct {
		Number int     `json:"number"`
		Active bool    `json:"active"`
		State  string  `json:"state,omitempty"`
		Gbps   float64 `json:"gbps,omitempty"`
	}
	fileDevice struct {
		ID            string  `json:"id"`
		Under         string  `json:"under,omitempty"` // host bridge and bridges, "pci0000:00/0000:00:01.1"
		Node          *int    `json:"numa_node,omitempty"`
		CPUs          string  `json:"cpus,omitempty"`
		Gigatransfers float64 `json:"gigatransfers,omitempty"`
		Lanes         int     `json:"lanes,omitempty"`
		Virtual       bool    `json:"virtual,omitempty"` // a virtual function
	}
	fileError struct {
		Kind string `json:"kind"`
		Text string `json:"text"`
	}
)

// Write writes the machine as [Read] reads it: as JSON, with its version. What is written
// twice is the same both times.
func (m *Machine) Write(w io.Writer) error {
	content, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(content, '\n'))
	return err
}

// MarshalJSON returns the machine as [Machine.Write] does, without white space.
func (m *Machine) MarshalJSON() ([]byte, error) {
	f := fileMachine{
		Format: fileFormat, Version: fileVersion, CPUs: CPUList(m.CPUs),
		Nodes: []fileNode{}, GPUs: []fileGPU{}, NICs: []fileNIC{}, PCI: []fileDevice{},
	}
	for _, n := range m.Nodes {
		f.Nodes = append(f.Nodes, fileNode{n.ID, CPUList(n.CPUs), n.Distances})
	}
	for _, g := range m.GPUs {
		one := fileGPU{Index: g.Index, Model: g.Model, PCI: g.PCIBusID, NVLinks: groupLinks(g.NVLinks)}
		if g.UUID != [16]byte{} {
			one.UUID = hex.EncodeToString(g.UUID[:])
		}
		if g.PCIBusID == "" {
			one.Node, one.CPUs = known(g.NUMANode), CPUList(g.CPUs)
		}
		f.GPUs = append(f.GPUs, one)
	}
	if m.GPUError != nil {
		kind := mscclgo.KindOf(m.GPUError)
		if saved, ok := m.GPUError.(savedError); ok {
			kind = saved.kind
		}
		f.GPUError = &fileError{kind.Error(), m.GPUError.Error()}
	}
	for _, n := range m.NICs {
		one := fileNIC{Name: n.Name, Kind: n.Kind.String(), PCI: n.PCIBusID, Interfaces: n.Interfaces, Ports: []filePort{}}
		for _, p := range n.Ports {
			one.Ports = append(one.Ports, filePort(p))
		}
		f.NICs = append(f.NICs, one)
	}
	for _, id := range slices.Sorted(maps.Keys(m.devices)) {
		d := m.devices[id]
		one := fileDevice{ID: id, Node: known(d.node), CPUs: CPUList(d.cpus), Gigatransfers: d.gigatransfers, Lanes: d.lanes, Virtual: d.virtual}
		if len(d.path) > 0 {
			one.Under = strings.Join(d.path[:len(d.path)-1], "/")
		}
		f.PCI = append(f.PCI, one)
	}
	return json.Marshal(f)
}

func known(node int) *int {
	if node == Unknown {
		return nil
	}
	return &node
}

// groupLinks joins links that differ in nothing but their numbers.
func groupLinks(links []Link) (groups []fileLinks) {
	for start := 0; start < len(links); {
		end := start
		var numbers []int
		for ; end < len(links); end++ {
			same := links[end]
			same.Number = links[start].Number
			if same != links[start] {
				break
			}
			numbers = append(numbers, links[end].Number)
		}
		l := links[start]
		group := fileLinks{Numbers: CPUList(numbers), Active: l.Active, Version: l.Version, PeerPCI: l.PeerPCI}
		if l.Peer != PeerUnknown {
			group.Peer = l.Peer.String()
		}
		groups = append(groups, group)
		start = end
	}
	return groups
}

// Read reads a machine that [Machine.Write] has written, of this machine or another one, or
// that somebody has described by hand.
//
// Errors: ErrInvalid, naming what is wrong.
func Read(r io.Reader) (*Machine, error) {
	content, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, opRead, "%w", err)
	}
	m, err := parseMachine(content)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, opRead, "%w", err)
	}
	return m, nil
}

func parseMachine(content []byte) (*Machine, error) {
	if len(content) > maxFile {
		return nil, fmt.Errorf("it has more than %d bytes", maxFile)
	}
	var kind struct {
		Format  string
		Version int
	}
	var wrong *json.UnmarshalTypeError
	switch err := json.Unmarshal(content, &kind); {
	case errors.As(err, &wrong) && wrong.Field == "":
		return nil, fmt.Errorf("it is a JSON %s, not an object with a format and a version", wrong.Value)
	case errors.As(err, &wrong):
		if number, ok := strings.CutPrefix(wrong.Value, "number "); ok { // not whole, or too large
			return nil, fmt.Errorf("there is no version %.40s", number)
		}
		return nil, fmt.Errorf("its %s is a JSON %s", strings.ToLower(wrong.Field), wrong.Value)
	case err != nil:
		return nil, fmt.Errorf("it is not JSON: %w", err)
	}
	switch {
	case kind.Format != fileFormat:
		return nil, fmt.Errorf("its format is %.40q, not %q, as mscclgo topo -save writes it", kind.Format, fileFormat)
	case kind.Version > fileVersion:
		return nil, fmt.Errorf("it is of version %d, and this program reads version %d; take a newer mscclgo", kind.Version, fileVersion)
	case kind.Version < 1:
		return nil, fmt.Errorf("there is no version %d", kind.Version)
	}
	if err := checkFields(content, reflect.TypeFor[fileMachine]()); err != nil {
		return nil, err
	}
	var f fileMachine
	if err := json.Unmarshal(content, &f); err != nil {
		return nil, err
	}
	r := reader{&Machine{devices: map[string]device{}}, map[string][]int{}, 0}
	var err error
	if r.CPUs, err = r.cpus(f.CPUs); err != nil {
		return nil, err
	}
	for _, add := range []func(*fileMachine) error{r.addNodes, r.addDevices, r.addGPUs, r.addNICs} {
		if err := add(&f); err != nil {
			return nil, err
		}
	}
	return r.Machine, nil
}

// reader makes a machine of a file.
type reader struct {
	*Machine
	lists  map[string][]int // of CPUs, so that devices share them
	listed int              // CPUs of all lists
}

// cpus parses a list of CPUs.
func (r *reader) cpus(text string) ([]int, error) {
	if list, known := r.lists[text]; known {
		return list, nil
	}
	list, err := parseList(text)
	if r.listed += len(list); err == nil && r.listed > maxListed {
		err = fmt.Errorf("all lists have more than %d CPUs", maxListed)
	}
	if err != nil {
		return nil, fmt.Errorf("cpus: %w", err)
	}
	r.lists[text] = list
	return list, nil
}

// tooMany returns the error of a list that is longer than there can be.
func tooMany(what string, n, most int) error {
	if n > most {
		return fmt.Errorf("it has %d %s, and there can be %d", n, what, most)
	}
	return nil
}

func (r *reader) addNodes(f *fileMachine) error {
	if err := tooMany("NUMA nodes", len(f.Nodes), maxNodes); err != nil {
		return err
	}
	for i, n := range f.Nodes {
		cpus, err := r.cpus(n.CPUs)
		switch {
		case err != nil:
			return fmt.Errorf("NUMA node %d: %w", n.ID, err)
		case n.ID < 0 || n.ID > maxID:
			return fmt.Errorf("NUMA node %d: not a number from 0 to %d", n.ID, maxID)
		case i > 0 && n.ID <= f.Nodes[i-1].ID:
			return fmt.Errorf("NUMA node %d comes behind node %d; they are in ascending order", n.ID, f.Nodes[i-1].ID)
		case len(n.Distances) != 0 && len(n.Distances) != len(f.Nodes):
			return fmt.Errorf("NUMA node %d: %d distances to %d nodes", n.ID, len(n.Distances), len(f.Nodes))
		}
		for _, d := range n.Distances {
			if d < 0 || d >= farthest {
				return fmt.Errorf("NUMA node %d: %d is not a distance from 0 to %d", n.ID, d, farthest-1)
			}
		}
		r.Nodes = append(r.Nodes, Node{n.ID, cpus, n.Distances})
	}
	return nil
}

// addDevices also checks that every bridge is below one and the same, so that no device is
// below itself.
func (r *reader) addDevices(f *fileMachine) error {
	if err := tooMany("PCI devices", len(f.PCI), maxEntries); err != nil {
		return err
	}
	above := map[string]string{}
	for _, d := range f.PCI {
		if err := checkID(d.ID); err != nil {
			return err
		}
		if _, twice := r.devices[d.ID]; twice {
			return fmt.Errorf("it has PCI device %s twice", d.ID)
		}
		one := device{gigatransfers: d.Gigatransfers, lanes: d.Lanes, virtual: d.Virtual}
		var err error
		if one.node, err = parseNode(d.Node); err != nil {
			return fmt.Errorf("PCI device %s: %w", d.ID, err)
		}
		if one.cpus, err = r.cpus(d.CPUs); err != nil {
			return fmt.Errorf("PCI device %s: %w", d.ID, err)
		}
		if one.lanes < 0 || one.lanes > maxLanes || one.lanes == 0 != (one.gigatransfers == 0) ||
			one.lanes > 0 && !slices.Contains(linkSpeeds, one.gigatransfers) {
			return fmt.Errorf("PCI device %s: a link has 1 to %d lanes of %v gigatransfers, or neither is known", d.ID, maxLanes, linkSpeeds)
		}
		if d.Under != "" {
			one.path = append(strings.Split(d.Under, "/"), d.ID)
		}
		if len(one.path) > maxDepth {
			return fmt.Errorf("PCI device %s is below %d others, and there can be %d", d.ID, len(one.path), maxDepth)
		}
		for i, at := range one.path {
			if !isHostBridge(at) {
				if err := checkID(at); err != nil {
					return fmt.Errorf("PCI device %s: under: %w", d.ID, err)
				}
			}
			if slices.Contains(one.path[:i], at) {
				return fmt.Errorf("PCI device %s is below %s, which is below itself", d.ID, at)
			}
			parent := "no other"
			if i > 0 {
				parent = one.path[i-1]
			}
			if first, seen := above[at]; seen && first != parent {
				return fmt.Errorf("PCI device %s is below %s for one device and below %s for another", at, first, parent)
			}
			above[at] = parent
		}
		r.devices[d.ID] = one
	}
	return nil
}

// checkID returns the error of a PCI bus ID that is not as sysfs writes it.
func checkID(id string) error {
	if normal, ok := normalBusID(id); !ok || normal != id {
		return fmt.Errorf("%.40q is not a PCI bus ID, such as 0000:1b:00.0", id)
	}
	return nil
}

func parseNode(n *int) (int, error) {
	switch {
	case n == nil:
		return Unknown, nil
	case *n < 0 || *n > maxID:
		return Unknown, fmt.Errorf("numa_node: %d is not a number from 0 to %d", *n, maxID)
	}
	return *n, nil
}

// checkNames returns the error of a text that cannot be part of a line.
func checkNames(what string, names ...string) error {
	for _, name := range names {
		if len(name) > maxName || !utf8.ValidString(name) || strings.ContainsFunc(name, func(c rune) bool { return !unicode.IsGraphic(c) }) {
			return fmt.Errorf("%s: %.40q is too long or has characters that cannot be printed", what, name)
		}
	}
	return nil
}

func (r *reader) addGPUs(f *fileMachine) error {
	if err := tooMany("GPUs", len(f.GPUs), maxGPUs); err != nil {
		return err
	}
	seen := map[string]bool{}
	uuids := map[[16]byte]bool{}
	for i, g := range f.GPUs {
		one, err := r.parseGPU(g)
		switch {
		case err != nil:
			return fmt.Errorf("GPU %d: %w", g.Index, err)
		case i > 0 && g.Index <= f.GPUs[i-1].Index:
			return fmt.Errorf("GPU %d comes behind GPU %d; they are in ascending order", g.Index, f.GPUs[i-1].Index)
		case g.PCI != "" && seen[g.PCI]:
			return fmt.Errorf("two GPUs have the address %s", g.PCI)
		case uuids[one.UUID]:
			return fmt.Errorf("two GPUs have the uuid %x", one.UUID)
		}
		seen[g.PCI], uuids[one.UUID] = true, one.UUID != [16]byte{}
		r.GPUs = append(r.GPUs, one)
	}
	if f.GPUError == nil {
		return nil
	}
	// It may have a line for each GPU.
	if err := checkNames("gpu_error: text", strings.Split(f.GPUError.Text, "\n")...); err != nil {
		return err
	}
	for kind := mscclgo.ErrInvalid; kind <= mscclgo.ErrSystem; kind++ {
		if kind.Error() == f.GPUError.Kind {
			r.GPUError = savedError{kind, f.GPUError.Text}
		}
	}
	if r.GPUError == nil {
		return fmt.Errorf("gpu_error: there is no kind %.40q", f.GPUError.Kind)
	}
	return nil
}

// savedError is the GPUError of a machine from a file.
type savedError struct {
	kind mscclgo.Kind
	text string
}

func (e savedError) Error() string { return e.text }
func (e savedError) Unwrap() error { return e.kind }

func (r *reader) parseGPU(g fileGPU) (GPU, error) {
	one := GPU{Index: g.Index, Model: g.Model, PCIBusID: g.PCI, NUMANode: Unknown}
	if g.Index < 0 || g.Index > maxID {
		return one, fmt.Errorf("not a number from 0 to %d", maxID)
	}
	if err := checkNames("model", g.Model); err != nil {
		return one, err
	}
	if g.UUID != "" {
		raw, err := hex.DecodeString(g.UUID)
		if err != nil || len(raw) != len(one.UUID) {
			return one, fmt.Errorf("uuid: %.40q is not %d hexadecimal digits", g.UUID, 2*len(one.UUID))
		}
		one.UUID = [16]byte(raw)
	}
	if g.PCI != "" {
		d, ok := r.devices[g.PCI]
		switch {
		case !ok:
			return one, fmt.Errorf("its address %.40q is not among the PCI devices", g.PCI)
		case g.Node != nil || g.CPUs != "":
			return one, errors.New("its NUMA node and CPUs are its PCI device's, and not to be given")
		}
		one.NUMANode, one.CPUs = d.node, d.cpus
	} else {
		var err error
		if one.NUMANode, err = parseNode(g.Node); err != nil {
			return one, err
		}
		if one.CPUs, err = r.cpus(g.CPUs); err != nil {
			return one, err
		}
	}
	for _, group := range g.NVLinks {
		links, err := parseLinks(group, len(one.NVLinks))
		if err != nil {
			return one, fmt.Errorf("nvlinks: %w", err)
		}
		if n := len(one.NVLinks); n > 0 && links[0].Number <= one.NVLinks[n-1].Number {
			return one, fmt.Errorf("nvlinks: link %d comes behind link %d; they are in ascending order", links[0].Number, one.NVLinks[n-1].Number)
		}
		one.NVLinks = append(one.NVLinks, links...)
	}
	return one, nil
}

// parseLinks returns the links of a group, of a GPU that has so many already.
func parseLinks(group fileLinks, before int) ([]Link, error) {
	numbers, err := parseList(group.Numbers)
	if err != nil {
		return nil, err
	}
	if len(numbers) == 0 {
		return nil, errors.New("a group has no numbers")
	}
	if err := tooMany("links", before+len(numbers), maxLinks); err != nil {
		return nil, err
	}
	l := Link{Active: group.Active, Version: group.Version, PeerPCI: group.PeerPCI}
	if l.Version < 0 || l.Version > maxID {
		return nil, fmt.Errorf("there is no version %d", l.Version)
	}
	if l.PeerPCI != "" {
		if err := checkID(l.PeerPCI); err != nil {
			return nil, fmt.Errorf("peer_pci: %w", err)
		}
	}
	kinds := []Peer{PeerGPU, PeerSwitch, PeerCPU}
	if i := slices.IndexFunc(kinds, func(p Peer) bool { return p.String() == group.Peer }); i >= 0 {
		l.Peer = kinds[i]
	} else if group.Peer != "" {
		return nil, fmt.Errorf("peer: %.40q is none of %v", group.Peer, kinds)
	}
	if !l.Active && (l.Peer != PeerUnknown || l.PeerPCI != "") {
		return nil, errors.New("only active links have a peer")
	}
	links := make([]Link, len(numbers))
	for i, n := range numbers {
		links[i] = l
		links[i].Number = n
	}
	return links, nil
}

func (r *reader) addNICs(f *fileMachine) error {
	if err := tooMany("NICs", len(f.NICs), maxNICs); err != nil {
		return err
	}
	// A system may have an RDMA device and an interface of one name, but not two of either.
	type name struct {
		text     string
		ethernet bool
	}
	seen := map[name]bool{}
	for _, n := range f.NICs {
		if err := checkNames("a NIC", append(n.Interfaces, n.Name)...); err != nil {
			return err
		}
		one := NIC{Name: n.Name, PCIBusID: n.PCI, NUMANode: Unknown, Interfaces: n.Interfaces}
		if d, ok := r.devices[n.PCI]; ok {
			one.NUMANode = d.node
		}
		kinds := []NICKind{Ethernet, InfiniBand, RoCE, OtherRDMA}
		i := slices.IndexFunc(kinds, func(k NICKind) bool { return k.String() == n.Kind })
		switch {
		case n.Name == "":
			return errors.New("a NIC has no name")
		case i < 0:
			return fmt.Errorf("NIC %s: kind: %.40q is none of %v", n.Name, n.Kind, kinds)
		}
		one.Kind = kinds[i]
		own := name{n.Name, one.Kind == Ethernet}
		if seen[own] {
			return fmt.Errorf("two NICs have the name %s", n.Name)
		}
		seen[own] = true
		if n.PCI != "" {
			if err := checkID(n.PCI); err != nil {
				return fmt.Errorf("NIC %s: pci: %w", n.Name, err)
			}
		}
		if err := cmp.Or(tooMany("ports", len(n.Ports), maxPorts), tooMany("interfaces", len(n.Interfaces), maxNames)); err != nil {
			return fmt.Errorf("NIC %s: %w", n.Name, err)
		}
		for _, p := range n.Ports {
			if err := checkNames("state", p.State); err != nil {
				return fmt.Errorf("NIC %s: %w", n.Name, err)
			}
			if p.Number < 0 || p.Number > maxID || !isRate(p.Gbps) && math.Float64bits(p.Gbps) != 0 {
				return fmt.Errorf("NIC %s: a port has a number from 0 to %d and a rate of 0.001 to 10^9 Gbit/s, or 0 if it is not known", n.Name, maxID)
			}
			one.Ports = append(one.Ports, Port(p))
		}
		r.NICs = append(r.NICs, one)
	}
	return nil
}
