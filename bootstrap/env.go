package bootstrap

import (
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/handshake"
)

// The variables that mscclgo itself defines. Its launcher sets EnvID, RANK,
// WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; the others are for users.
const (
	// EnvID holds a unique id as text.
	EnvID = "MSCCLGO_ID"
	// EnvSecret holds text that only the ranks of the group know. Without EnvID,
	// the group's secret is derived from it.
	EnvSecret = "MSCCLGO_SECRET"
	// EnvPort holds the port on which rank 0 opens the rendezvous. It is ignored
	// if there is an EnvID.
	EnvPort = "MSCCLGO_PORT"
	// envInterface names the network interface to use, as Options.Interface.
	envInterface = "MSCCLGO_INTERFACE"
	// envAdvertise holds the address that peers dial, as Options.Advertise.
	envAdvertise = "MSCCLGO_ADVERTISE"
	// envTLS is 1 to encrypt the bootstrap's traffic, as Options.TLS, or 0.
	envTLS = "MSCCLGO_BOOTSTRAP_TLS"
)

// An Env describes this process as the environment does.
type Env struct {
	Options   Options // for Connect
	LocalRank int     // this rank's number among those on this machine
	LocalSize int     // the ranks on this machine, or 0 if LOCAL_WORLD_SIZE is not set beside LOCAL_RANK
	Launcher  string  // who started the process, for people to read
	Warning   string  // who might join besides the ranks and what keeps them out, for people to read, or ""
}

// A launcher names the variables that one kind of launcher sets.
type launcher struct {
	name        string
	rank        string
	size        []string // the first that is set
	localRank   string
	localSize   []string // the first that is set
	marks       []string // set under this launcher, besides rank
	jobs        []string // they distinguish one job from another, and are no secret; any may be missing
	chosen      string   // the one of jobs that users may choose, or ""
	unchosen    string   // its value if they have not
	exports     bool     // its ranks have the environment of its caller
	option      string   // that it needs to export a secret, or ""
	oneRankEach bool     // one rank on each machine, so no local variables
	byNode      bool     // localSize lists all nodes' numbers
	// notOurs reports whether another launcher has set rank. It may be nil.
	notOurs func(v vars) bool
	// sizeless allows localRank without localSize, as PyTorch's env:// does: who sets the
	// variables by hand often leaves it out.
	sizeless bool
	// addr finds rank 0's host if there is no MASTER_ADDR.
	addr func(v vars, localSize, size int) (string, error)
}

// launchers, in the order in which they are looked for: one that starts another
// comes after it. Inside a Slurm or Kubernetes job, torchrun and mpirun number
// the ranks.
var launchers = []launcher{
	{
		name: "torchrun", rank: "RANK", size: []string{"WORLD_SIZE"},
		localRank: "LOCAL_RANK", localSize: []string{"LOCAL_WORLD_SIZE"}, sizeless: true,
		// The run id, a --rdzv-id, is among torchrun's arguments, which any user sees, and in the
		// names of the keys that its agents ask each other for.
		jobs:   []string{"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"},
		chosen: "TORCHELASTIC_RUN_ID", unchosen: "none",
	},
	{
		name: "Open MPI's mpirun", rank: "OMPI_COMM_WORLD_RANK", size: []string{"OMPI_COMM_WORLD_SIZE"},
		localRank: "OMPI_COMM_WORLD_LOCAL_RANK", localSize: []string{"OMPI_COMM_WORLD_LOCAL_SIZE"},
		addr: loopbackIfAlone,
		// All are made of mpirun's host and process number, such as prterun-host-4711@1, and its
		// daemons on other hosts have them among their arguments, which any user sees.
		jobs:    []string{"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"},
		exports: true, option: "-x " + EnvSecret,
	},
	{
		name: "MPICH's mpiexec", rank: "PMI_RANK", size: []string{"PMI_SIZE"},
		localRank: "MPI_LOCALRANKID", localSize: []string{"MPI_LOCALNRANKS"},
		notOurs: pmiOfSlurm,
		addr:    loopbackIfAlone,
		// PMI_KVSNAME is made of mpiexec's host and process number and a number from the clock, or
		// of Slurm's numbers.
		jobs: []string{"PMI_JOBID", "PMI_KVSNAME", "SLURM_JOB_ID", "SLURM_STEP_ID"}, exports: true,
	},
	{
		// SLURM_STEP_ID is there under srun and not in a batch script, which
		// has a SLURM_PROCID too.
		name: "srun", rank: "SLURM_PROCID", size: []string{"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
		localRank: "SLURM_LOCALID", localSize: []string{"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"},
		marks: []string{"SLURM_STEP_ID"}, byNode: true,
		addr: slurmFirstNode,
		// squeue shows them to any user.
		jobs: []string{"SLURM_JOB_ID", "SLURM_STEP_ID"}, exports: true,
	},
	{
		name: "a Kubernetes indexed job", rank: "JOB_COMPLETION_INDEX", size: []string{"WORLD_SIZE"},
		oneRankEach: true,
	},
}

// InGroupEnv reports whether a launcher that FromEnv knows has started this
// process. If not, the process is on its own.
func InGroupEnv(lookup func(name string) (value string, ok bool)) bool {
	v := vars{lookup}
	return v.has(EnvID) || v.launcher() != nil
}

// RankVariables returns the set variables by which launchers make a process a rank, as far as
// FromEnv knows. Without them the process is on its own.
func RankVariables(lookup func(name string) (value string, ok bool)) (names []string) {
	v := vars{lookup}
	if v.has(EnvID) {
		names = append(names, EnvID)
	}
	for _, l := range launchers {
		if v.marked(&l) { // even if another has set it, under which it would count without that one's
			names = append(names, l.rank)
		}
	}
	return names
}

const opEnv = "bootstrap: read the environment"

// FromEnv reads rank, size and unique id from what the launcher set:
//
//	mscclgo run  RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MSCCLGO_ID
//	torchrun     RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT,
//	             or by hand without LOCAL_WORLD_SIZE
//	Open MPI     OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//	MPICH        PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS
//	srun         SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID SLURM_STEP_TASKS_PER_NODE
//	Kubernetes   JOB_COMPLETION_INDEX WORLD_SIZE MASTER_ADDR
//
// MSCCLGO_ID, under any of them, is the group's unique id. Without it, rank 0
// opens the rendezvous:
//
//   - at the host MASTER_ADDR; else srun's first node; else, if mpirun started
//     all ranks on one machine, the loopback address;
//   - on the port MSCCLGO_PORT; else MASTER_PORT + 2, because torchrun's own
//     store holds MASTER_PORT, and the port after one that Linux chose for a
//     server is one that connections dial from; else one from 20000 to 31999
//     derived from the job;
//   - with a secret derived from MSCCLGO_SECRET. The identifiers that launchers set are none,
//     since others can see or guess them: without a secret the ranks of one machine meet at a
//     loopback address, which keeps out all but that machine's users, and ranks of several machines
//     need MSCCLGO_SECRET. Only torchrun's --rdzv-id is taken in its place there, and Warning
//     says who may join then: users of the ranks' machines, who see torchrun's arguments, and
//     whoever hears or may ask its agents. Others fail, unless they guess it.
//
// Text that may be easy to guess is stretched with 600,000 rounds of PBKDF2
// (HMAC-SHA256), which takes a core 0.1 to 0.3 seconds: once in each process,
// in Connect, or here if the port is derived from it too. A stranger pays that for each
// guess. MSCCLGO_ID has a random secret and costs nothing.
//
// MSCCLGO_INTERFACE, MSCCLGO_ADVERTISE and MSCCLGO_BOOTSTRAP_TLS set the options
// Interface, Advertise and TLS.
//
// The error, an ErrInvalid, names the variables that are missing or contradict
// each other.
func FromEnv(lookup func(name string) (value string, ok bool)) (Env, error) {
	env, err := vars{lookup}.env()
	if err != nil {
		return Env{}, mscclgo.Errorf(mscclgo.ErrInvalid, opEnv, "%w", err)
	}
	return env, nil
}

// vars is an environment. A variable that is set but empty counts as not set.
type vars struct {
	lookup func(name string) (value string, ok bool)
}

func (v vars) get(name string) string {
	s, _ := v.lookup(name)
	return strings.TrimSpace(s)
}

func (v vars) has(name string) bool { return v.get(name) != "" }

// first returns the first of names that is set, or "".
func (v vars) first(names []string) string {
	for _, n := range names {
		if v.has(n) {
			return n
		}
	}
	return ""
}

// number reads a whole number from low on.
func (v vars) number(name string, low int) (int, error) {
	if !v.has(name) {
		return 0, fmt.Errorf("%s is not set", name)
	}
	n, err := strconv.Atoi(v.get(name))
	if err != nil || n < low {
		return 0, fmt.Errorf("%s=%q is not a whole number from %d on", name, v.get(name), low)
	}
	return n, nil
}

// launcher returns who started the process, or nil.
func (v vars) launcher() *launcher {
	for i := range launchers {
		if l := &launchers[i]; v.marked(l) && (l.notOurs == nil || !l.notOurs(v)) {
			return l
		}
	}
	return nil
}

// marked reports whether the variables are set by which a launcher is known.
func (v vars) marked(l *launcher) bool {
	return v.has(l.rank) && !slices.ContainsFunc(l.marks, func(m string) bool { return !v.has(m) })
}

// pmiOfSlurm reports whether srun has set PMI_RANK itself, as it does with --mpi=pmi2: it leaves out
// MPICH's local variables, which mpiexec sets inside Slurm too, so all ranks would be local rank 0.
func pmiOfSlurm(v vars) bool {
	return !v.has("MPI_LOCALRANKID") && v.has("SLURM_PROCID") && v.has("SLURM_STEP_ID")
}

func (v vars) env() (Env, error) {
	l := v.launcher()
	if l == nil {
		if v.has(EnvID) {
			return Env{}, fmt.Errorf("%s is set, but RANK is not", EnvID)
		}
		return Env{}, fmt.Errorf("no launcher has set RANK, OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID with SLURM_STEP_ID, or JOB_COMPLETION_INDEX: " +
			`start the program with "mscclgo run -n 4 PROGRAM", "python -m mscclgo run -n 4 PROGRAM.py", torchrun, mpirun or srun`)
	}
	env := Env{Launcher: l.name}
	var err error
	if env.Options.Rank, env.Options.Size, err = v.place(l.rank, l.size, func(name string) (int, error) { return v.number(name, 1) }); err != nil {
		return Env{}, err
	}
	if env.LocalRank, env.LocalSize, err = v.local(l); err != nil {
		return Env{}, err
	}
	if env.LocalSize > env.Options.Size {
		return Env{}, fmt.Errorf("%s=%s is more than %s=%d", v.first(l.localSize), v.get(v.first(l.localSize)), v.first(l.size), env.Options.Size)
	}
	if v.has(EnvID) && l.rank == "RANK" {
		env.Launcher = "mscclgo run"
	}
	env.Options.Interface = v.get(envInterface)
	env.Options.Advertise = v.get(envAdvertise)
	if v.has(envTLS) {
		if env.Options.TLS, err = strconv.ParseBool(v.get(envTLS)); err != nil {
			return Env{}, fmt.Errorf("%s=%q is neither 1 nor 0", envTLS, v.get(envTLS))
		}
	}
	if v.has(EnvID) {
		if env.Options.ID, err = parseID(v.get(EnvID)); err != nil {
			return Env{}, fmt.Errorf("%s is not a unique id: %w", EnvID, err)
		}
		return env, nil
	}
	env.Options.ID, env.Warning, err = v.deriveID(l, env)
	return env, err
}

// place reads a rank and the size it must be below.
func (v vars) place(rankName string, sizeNames []string, readSize func(string) (int, error)) (rank, size int, err error) {
	if rank, err = v.number(rankName, 0); err != nil {
		return 0, 0, err
	}
	sizeName := v.first(sizeNames)
	if sizeName == "" {
		return 0, 0, fmt.Errorf("%s=%d is set, but %s is not", rankName, rank, strings.Join(sizeNames, " or "))
	}
	if size, err = readSize(sizeName); err != nil {
		return 0, 0, err
	}
	if rank >= size {
		return 0, 0, fmt.Errorf("%s=%d and %s=%s contradict each other: ranks are from 0 to %d", rankName, rank, sizeName, v.get(sizeName), size-1)
	}
	return rank, size, nil
}

// local reads the rank's place on this machine. It is 0 of 1 under a launcher that
// starts one rank on each, and where all variables are missing.
func (v vars) local(l *launcher) (rank, size int, err error) {
	if l.oneRankEach || !v.has(l.localRank) && v.first(l.localSize) == "" {
		return 0, 1, nil
	}
	if l.sizeless && v.first(l.localSize) == "" {
		rank, _, err = v.place(l.localRank, l.size, func(name string) (int, error) { return v.number(name, 1) })
		return rank, 0, err
	}
	return v.place(l.localRank, l.localSize, func(name string) (int, error) {
		if l.byNode {
			return v.tasksHere(name)
		}
		return v.number(name, 1)
	})
}

// deriveID makes the id that each rank can derive by itself, and the Env's warning.
func (v vars) deriveID(l *launcher, env Env) (id UniqueID, warning string, err error) {
	secret, job := v.get(EnvSecret), v.jobs(l)
	together := env.LocalSize == env.Options.Size
	var open error // which strangers of other machines could join
	if secret == "" && !together && !v.choseJob(l) {
		open = l.noSecret()
	}
	host := v.get("MASTER_ADDR")
	if host == "" {
		if l.addr == nil {
			return UniqueID{}, "", fmt.Errorf("neither %s nor MASTER_ADDR is set: one is needed to find rank 0", EnvID)
		}
		if host, err = l.addr(v, env.LocalSize, env.Options.Size); err != nil {
			if open != nil {
				err = fmt.Errorf("%w. Also, %w", err, open)
			}
			return UniqueID{}, "", err
		}
	} else if err := checkHost(host); err != nil {
		return UniqueID{}, "", fmt.Errorf("MASTER_ADDR: %w", err)
	}
	if secret == "" && !isLoopback(host) {
		if together {
			host = loopback // rank 0 is here too
		} else if open == nil {
			warning = l.seenSecret()
		}
	}
	weak := sync.OnceValue(func() [secretSize]byte {
		return stretch(strings.Join(append([]string{secret}, job...), "\n"), host)
	})
	port, err := v.port(l, job, weak)
	if err != nil {
		return UniqueID{}, "", err
	}
	if open != nil && !isLoopback(host) {
		return UniqueID{}, "", open
	}
	place := fmt.Sprintf("%s:%d", host, port)
	// The group's number is not a secret, so it must not help to guess one: nothing
	// secret goes into it.
	public := place
	if secret != "" {
		public = strings.Join(append(job, place), "\n")
	}
	group := derive([]byte(public), "group")
	return UniqueID{hosts: host, port: port, hosted: true, group: [groupSize]byte(group[:]), secret: sync.OnceValue(func() [secretSize]byte {
		text := weak()
		return derive(append(text[:], place...), "secret")
	})}, warning, nil
}

// jobs returns what distinguishes the job from others.
func (v vars) jobs(l *launcher) (job []string) {
	for _, name := range l.jobs {
		if v.has(name) {
			job = append(job, name+"="+v.get(name))
		}
	}
	return job
}

// choseJob reports whether the user has chosen what distinguishes the job from others.
func (v vars) choseJob(l *launcher) bool {
	return l.chosen != "" && v.has(l.chosen) && v.get(l.chosen) != l.unchosen
}

// noSecret is the error of ranks that strangers could join.
func (l *launcher) noSecret() error {
	return fmt.Errorf("%s shares no secret among its ranks: %s (or set %s)", l.name, l.setSecret(), EnvID)
}

// seenSecret is the warning of ranks that have no secret but an identifier which the user chose.
func (l *launcher) seenSecret() string {
	return fmt.Sprintf("%s's --rdzv-id is taken for the group's secret, but other users of the ranks' machines see it in the output of ps, and it "+
		"crosses the network unencrypted, so they could join: %s", l.name, l.setSecret())
}

// setSecret says how to set one.
func (l *launcher) setSecret() string {
	how := `such as one output of "openssl rand -hex 16"`
	if l.exports {
		how = fmt.Sprintf(`by "export %s=$(openssl rand -hex 16)" before it starts them`, EnvSecret)
	}
	if l.option != "" {
		how += fmt.Sprintf(" with its option %q", l.option)
	}
	return fmt.Sprintf("set %s to the same random text for all, %s", EnvSecret, how)
}

// port returns where rank 0 listens. The secret is derived from weak.
func (v vars) port(l *launcher, job []string, weak func() [secretSize]byte) (uint16, error) {
	name, add := EnvPort, 0
	if !v.has(EnvPort) { // Linux takes ports of one parity for servers, and of the other for connections.
		name, add = "MASTER_PORT", 2
	}
	if v.has(name) {
		n, err := v.number(name, 1)
		if err != nil {
			return 0, err
		}
		switch {
		case n > 65535:
			return 0, fmt.Errorf("%s=%d is not a port, from 1 to 65535", name, n)
		case n+add > 65535:
			return 0, fmt.Errorf("%s=%d leaves no port for the rendezvous; set %s", name, n, EnvPort)
		}
		return uint16(n + add), nil
	}
	// The port shows some bits of its source. If the source is the secret, or
	// stands in for it, each guess must cost as much as at the secret itself.
	var n [32]byte
	switch hasSecret := v.has(EnvSecret); {
	case hasSecret && len(job) > 0:
		n = derive([]byte(strings.Join(job, "\n")), "port")
	case hasSecret || len(job) > 0:
		text := weak()
		n = derive(text[:], "port")
	default:
		return 0, fmt.Errorf("none of %s, %s, MASTER_PORT, %s and the identifiers of jobs under %s (%s) is set: one is needed to choose rank 0's port",
			EnvID, EnvPort, EnvSecret, l.name, strings.Join(l.jobs, ", "))
	}
	// Below 32768, from where Linux takes the ports of connections that dial.
	return 20000 + uint16(binary.LittleEndian.Uint32(n[:])%12000), nil
}

// derive returns 32 bytes for a purpose from what the ranks share.
func derive(shared []byte, purpose string) [32]byte {
	return handshake.Derive(shared, "environment "+purpose)
}

// stretchRounds makes a guess of text that people or schedulers chose cost a core 0.1 to
// 0.3 seconds, as it costs each rank once. It is what OWASP recommends for PBKDF2 with
// HMAC-SHA256.
const stretchRounds = 600_000

// stretch returns a key from text that may be easy to guess. The salt keeps guesses that
// were computed for one host from fitting another.
func stretch(text, host string) [secretSize]byte {
	key, err := pbkdf2.Key(sha256.New, text, []byte("mscclgo environment "+host), stretchRounds, secretSize)
	if err != nil {
		panic("bootstrap: " + err.Error()) // a size that PBKDF2 does not have
	}
	return [secretSize]byte(key)
}

// loopbackIfAlone returns rank 0's address if all ranks are on one machine.
func loopbackIfAlone(_ vars, localSize, size int) (string, error) {
	if localSize != size {
		return "", fmt.Errorf("MASTER_ADDR is not set, and only %d of %d ranks are on this machine: set it to rank 0's host (or set %s)", localSize, size, EnvID)
	}
	return loopback, nil
}

const loopback = "127.0.0.1"
