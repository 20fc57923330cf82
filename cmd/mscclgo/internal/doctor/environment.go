package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// variables are the ones that users set, without MSCCLGO_ in front.
var variables = []string{
	"ADVERTISE", "BOOTSTRAP_TLS", "CACHE", "CUDA_COMPILER", "DEADLOCKS", "DEVICE", "EMU_DEVICES", "EMU_MEMORY", "ETHERNET_INTERFACE",
	"HEARTBEAT_TIMEOUT", "HOST_ID", "IB_DEVICE", "IB_GID_INDEX", "IB_NO_ATOMICS", "IB_PORT", "IB_QUEUE_PAIRS",
	"IB_SERVICE_LEVEL", "IB_TRAFFIC_CLASS", "ID", "IMAGES", "INTERFACE", "LOG", "NVRTC", "NVRTC_FALLBACK", "PORT", "SECRET", "TRACE", "TRACE_EVENTS", "TRANSPORTS",
}

// ignored are variables of tests and of programs that start others, and macros.
var ignored = []string{"TEST_", "REQUIRE", "LAUNCHER", "BENCH_LAUNCHED", "DOCTOR", "NVRTC_SOURCES", "CHECK", "FEW_RANKS", "FOUR_RANKS", "RACE", "EXPLORE"}

// secrets are not shown.
var secrets = []string{"SECRET", "ID"}

// environment looks for variables that are set, and for misspelled ones.
func (e *examination) environment() Finding {
	var set, unknown []string
	for _, v := range slices.Sorted(slices.Values(e.Environ)) {
		text, ours := strings.CutPrefix(v, "MSCCLGO_")
		if !ours {
			continue
		}
		name, value, _ := strings.Cut(text, "=")
		switch {
		case slices.Contains(secrets, name):
			set = append(set, fmt.Sprintf("MSCCLGO_%s (not shown)", name))
		case slices.Contains(variables, name):
			set = append(set, fmt.Sprintf("MSCCLGO_%s=%s", name, value))
		case !slices.ContainsFunc(ignored, func(p string) bool { return strings.HasPrefix(name, p) }):
			unknown = append(unknown, "MSCCLGO_"+name)
		}
	}
	text := "no variable of mscclgo is set"
	if len(set) > 0 {
		text = strings.Join(set, ", ")
	}
	if len(unknown) > 0 {
		return warning("env | grep MSCCLGO_", "%s\nnobody reads %s: the variables are MSCCLGO_ and %s", text, strings.Join(unknown, ", "), strings.Join(variables, ", "))
	}
	return ok("%s", text)
}

// contained returns what kind of container this process is in, or "".
func (e *examination) contained() string {
	switch {
	case e.env("KUBERNETES_SERVICE_HOST") != "":
		return "Kubernetes"
	case e.exists("/.dockerenv"):
		return "Docker"
	case e.exists("/run/.containerenv"):
		return "Podman"
	case e.env("APPTAINER_CONTAINER") != "" || e.env("SINGULARITY_CONTAINER") != "":
		return "Apptainer"
	case e.env("container") != "":
		return e.env("container")
	}
	return ""
}

// container says whether this is one. Ranks of one group may be in several, on one host,
// if they share what descriptors pass over.
func (e *examination) container() Finding {
	kind := e.contained()
	if kind == "" {
		return ok("none")
	}
	return ok("%s; ranks in several containers of a host reach each other's memory only with one network namespace (--network host)", kind)
}
