package bootstrap

// fanOut is how many children a rank of the tree has at most: with 8, news from
// one end of 512 ranks to the other passes 6 connections.
const fanOut = 8

// parent returns the rank above rank r in the tree, or -1 above rank 0.
func parent(r int) int {
	if r == 0 {
		return -1
	}
	return (r - 1) / fanOut
}

// children returns the ranks directly below r in a tree of size ranks.
func children(r, size int) []int {
	var c []int
	for k := r*fanOut + 1; k <= r*fanOut+fanOut && k < size; k++ {
		c = append(c, k)
	}
	return c
}

// toward returns the neighbour of r on the way to rank to, another rank.
func toward(r, to int) int {
	for below := to; below > r; {
		above := parent(below)
		if above == r {
			return below
		}
		below = above
	}
	return parent(r)
}

// neighbours returns the ranks next to r in the tree.
func neighbours(r, size int) []int {
	n := children(r, size)
	if p := parent(r); p >= 0 {
		n = append(n, p)
	}
	return n
}
