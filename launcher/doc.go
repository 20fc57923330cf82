// Package launcher starts the ranks of a group as processes on this machine
// and supervises them until the last has ended.
//
// [Run] sets the environment of each rank, from which [bootstrap.FromEnv] joins
// the group, merges the ranks' output line by line, forwards signals, and ends all
// ranks when one fails. [Self] lets a program start copies of itself as ranks, so
// that it works without a launcher too.
//
// Each rank is the leader of a process group. When it ends, the other processes of
// that group are killed. When the launching process dies, however it dies, the kernel
// kills the ranks (PR_SET_PDEATHSIG in prctl(2)) and a shell that watches over them
// kills the rest of their groups. Only a process that a rank moved elsewhere with
// setsid(2) or setpgid(2) escapes.
package launcher
