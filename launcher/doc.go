// Package launcher starts the ranks of a group as processes on this machine
// and looks after them until the last has ended.
//
// [Run] gives each rank the environment from which [bootstrap.FromEnv] joins
// the group, merges the ranks' output line by line, passes signals on, and
// ends all ranks when one fails. [Self] lets a program start copies of itself
// as ranks, so that it works alone as well as under a launcher.
//
// A rank is the leader of a process group of its own. When it ends, whatever
// it left in that process group is killed, and when the launching process
// dies, however it dies, the kernel kills the rank (PR_SET_PDEATHSIG in
// prctl(2)). Only a process that a rank moved elsewhere with setsid(2) or
// setpgid(2), or one that a rank started and that outlives a SIGKILL of the
// launching process, escapes.
package launcher
