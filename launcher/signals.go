package launcher

import (
	"os"
	"os/signal"
	"syscall"
)

// forwarded are the signals that a person or a batch system sends to a job.
var forwarded = [...]os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
}

// catchSignals delivers the signals to forward until stop is called. Signals that
// this process ignores, under nohup(1) for example, stay ignored.
func catchSignals() (caught <-chan os.Signal, stop func()) {
	c := make(chan os.Signal, 16)
	for _, s := range forwarded {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
	return c, func() { signal.Stop(c) }
}
