package doctor

import (
	"encoding/json"
	"fmt"
)

// The machine in JSON.
type (
	machine struct {
		CPUs   []int             `json:"cpus"`
		Nodes  []node            `json:"numa_nodes"`
		GPUs   []gpuDevice       `json:"gpus"`
		NICs   []nic             `json:"nics"`
		Routes map[string]string `json:"routes"` // between GPUs: "0-1" is "NV18", or the path
	}
	node struct {
		ID   int   `json:"id"`
		CPUs []int `json:"cpus"`
	}
	gpuDevice struct {
		Index int    `json:"index"`
		UUID  string `json:"uuid"`
		Model string `json:"model"`
		PCI   string `json:"pci"`
		Node  int    `json:"numa_node"` // -1 if unknown
	}
	nic struct {
		Name       string   `json:"name"`
		Kind       string   `json:"kind"`
		PCI        string   `json:"pci"`
		Node       int      `json:"numa_node"`
		Active     bool     `json:"active"`
		Interfaces []string `json:"interfaces"`
	}
)

// MarshalJSON returns the findings and, if it is known, the machine.
func (r *Report) MarshalJSON() ([]byte, error) {
	out := struct {
		Findings []Finding `json:"findings"`
		Machine  *machine  `json:"machine,omitempty"`
	}{Findings: r.Findings}
	if r.Machine != nil {
		m := &machine{CPUs: r.Machine.CPUs, Nodes: []node{}, GPUs: []gpuDevice{}, NICs: []nic{}, Routes: map[string]string{}}
		for _, n := range r.Machine.Nodes {
			m.Nodes = append(m.Nodes, node{n.ID, n.CPUs})
		}
		for i, g := range r.Machine.GPUs {
			m.GPUs = append(m.GPUs, gpuDevice{g.Index, fmt.Sprintf("%x", g.UUID), g.Model, g.PCIBusID, g.NUMANode})
			for _, to := range r.Machine.GPUs[i+1:] {
				if route, err := r.Machine.LinkBetween(g.PCIBusID, to.PCIBusID); err == nil {
					m.Routes[fmt.Sprintf("%d-%d", g.Index, to.Index)] = route.String()
				}
			}
		}
		for _, n := range r.Machine.NICs {
			m.NICs = append(m.NICs, nic{n.Name, n.Kind.String(), n.PCIBusID, n.NUMANode, n.Active(), n.Interfaces})
		}
		out.Machine = m
	}
	return json.Marshal(out)
}
