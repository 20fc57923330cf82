//go:build !race

package bench

// largestEmulated is the largest size that is tested on emulated devices.
const largestEmulated = 64 << 20

// race is whether the race detector is on.
const race = false
