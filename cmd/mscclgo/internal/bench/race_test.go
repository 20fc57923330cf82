//go:build race

package bench

// largestEmulated is small: the race detector makes checking on the host ten times
// slower, and has nothing to find in larger sizes.
const largestEmulated = 4 << 20

// race is whether the race detector is on.
const race = true
