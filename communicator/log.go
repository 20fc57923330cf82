package communicator

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/topology"
)

// envLog has events of this level and above written to the standard error.
const envLog = "MSCCLGO_LOG"

// environmentLog marks a logger that writes to the standard error already.
type environmentLog struct{ slog.Handler }

// logFromEnv adds what MSCCLGO_LOG asks for to the program's logger.
func logFromEnv(o *Options) error {
	text := os.Getenv(envLog)
	if text == "" {
		return nil
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(text)); err != nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "communicator: read the environment", "%s is %q, none of debug, info, warn and error", envLog, text)
	}
	handlers := []slog.Handler{slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})}
	if o.Logger != nil {
		if _, done := o.Logger.Handler().(environmentLog); done {
			return nil
		}
		handlers = append(handlers, o.Logger.Handler())
	}
	o.Logger = slog.New(environmentLog{slog.NewMultiHandler(handlers...)})
	return nil
}

// logFormed tells which device this rank has, and how it reaches its peers.
func (c *Communicator) logFormed() {
	peers := map[registeredmem.Transports][]int{}
	for rank, transport := range c.links {
		if rank != c.Rank() {
			peers[transport] = append(peers[transport], rank)
		}
	}
	var by []string
	for _, transport := range []registeredmem.Transports{registeredmem.CudaIPC, registeredmem.SHM, registeredmem.InfiniBand, registeredmem.Ethernet} {
		if ranks := peers[transport]; ranks != nil {
			by = append(by, fmt.Sprintf("%v to %s", transport, topology.CPUList(ranks)))
		}
	}
	c.options.Logger.Info("the group has formed", "rank", c.Rank(), "ranks", c.Size(), "hosts", len(c.hosts),
		"device", c.dev, "peers", strings.Join(by, ", "), "version", mscclgo.Version)
}
