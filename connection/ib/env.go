package ib

import (
	"os"
	"strconv"

	"github.com/mscclgo/mscclgo"
)

// Environment variables that set fields of [Options] which are zero.
const (
	EnvDevice       = "MSCCLGO_IB_DEVICE"
	EnvPort         = "MSCCLGO_IB_PORT"
	EnvGIDIndex     = "MSCCLGO_IB_GID_INDEX"
	EnvQueuePairs   = "MSCCLGO_IB_QUEUE_PAIRS"
	EnvServiceLevel = "MSCCLGO_IB_SERVICE_LEVEL"
	EnvTrafficClass = "MSCCLGO_IB_TRAFFIC_CLASS"
	EnvNoAtomics    = "MSCCLGO_IB_NO_ATOMICS" // 1: yes
)

// fromEnv sets zero fields from the environment.
func (o *Options) fromEnv() error {
	if o.Device == "" {
		o.Device = os.Getenv(EnvDevice)
	}
	var no int
	for name, field := range map[string]*int{
		EnvPort: &o.Port, EnvGIDIndex: &o.GIDIndex, EnvQueuePairs: &o.QueuePairs,
		EnvServiceLevel: &o.ServiceLevel, EnvTrafficClass: &o.TrafficClass, EnvNoAtomics: &no,
	} {
		text := os.Getenv(name)
		if *field != 0 || text == "" {
			continue
		}
		var err error
		if *field, err = strconv.Atoi(text); err != nil {
			return mscclgo.Errorf(mscclgo.ErrInvalid, "ib: read the environment", "%s is %q, not a number", name, text)
		}
	}
	o.NoAtomics = o.NoAtomics || no != 0
	return nil
}
