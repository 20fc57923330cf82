//go:build race

package bench

// largestEmulated is small: the race detector makes checking on the host ten times
// slower, and has nothing to find in larger sizes.
const largestEmulated = 4 << 20
