package ib

import (
	"os"
	"strconv"

	"github.com/mscclgo/mscclgo"
)

// Environment variables that set fields of [Options] which are zero.
const (
	EnvDevice       = "MSCCLGO_IB_DEVICE"
	envPort         = "MSCCLGO_IB_PORT"
	envGIDIndex     = "MSCCLGO_IB_GID_INDEX"
	envQueuePairs   = "MSCCLGO_IB_QUEUE_PAIRS"
	envServiceLevel = "MSCCLGO_IB_SERVICE_LEVEL"
	envTrafficClass = "MSCCLGO_IB_TRAFFIC_CLASS"
	envNoAtomics    = "MSCCLGO_IB_NO_ATOMICS"
)

// fromEnv sets zero fields from the environment.
func (o *Options) fromEnv() error {
	if o.Device == "" {
		o.Device = os.Getenv(EnvDevice)
	}
	var no int
	for name, field := range map[string]*int{
		envPort: &o.Port, envGIDIndex: &o.GIDIndex, envQueuePairs: &o.QueuePairs,
		envServiceLevel: &o.ServiceLevel, envTrafficClass: &o.TrafficClass, envNoAtomics: &no,
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
