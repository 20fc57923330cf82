package bootstrap

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

// environment is a Lookup in "NAME=value" words.
func environment(words string) func(string) (string, bool) {
	env := map[string]string{}
	for _, w := range strings.Fields(words) {
		name, value, _ := strings.Cut(w, "=")
		env[name] = value
	}
	return func(name string) (string, bool) { v, ok := env[name]; return v, ok }
}

func TestFromEnv(t *testing.T) {
	id := testID(t)
	const ranks = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 "
	const ompi = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=4 "
	const slurm = "SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_NTASKS=11 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=4(x2),3 "
	const alone = "SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_LOCALID=1 SLURM_STEP_TASKS_PER_NODE=4 "
	for _, c := range []struct {
		name, env, launcher                string
		rank, size, localRank, localSize   int
		addr                               string // "" where the port is derived
		interfaceName, advertise, addrHost string
	}{
		{"own launcher", ranks + "MSCCLGO_ID=" + id.String(), "mscclgo run", 5, 8, 1, 4, id.Addr(), "", "", ""},
		{"own launcher, RANK and WORLD_SIZE alone", "RANK=0 WORLD_SIZE=1 MSCCLGO_ID=" + id.String(), "mscclgo run", 0, 1, 0, 1, id.Addr(), "", "", ""},
		{"torchrun", ranks + "MASTER_ADDR=node0 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0 GROUP_RANK=1 MSCCLGO_SECRET=s",
			"torchrun", 5, 8, 1, 4, "node0:29502", "", "", ""},
		{"torchrun, one machine", ranks + "MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0",
			"torchrun", 5, 8, 1, 4, "127.0.0.1:29502", "", "", ""},
		{"by hand as for PyTorch", "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=localhost MASTER_PORT=29500", "torchrun", 1, 2, 1, 0, "localhost:29502", "", "", ""},
		{"by hand, on several hosts", "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=node0 MASTER_PORT=29500 MSCCLGO_SECRET=s", "torchrun", 5, 8, 1, 0, "node0:29502", "", "", ""},
		{"torchrun with a port", ranks + "MASTER_ADDR=::1 MASTER_PORT=29500 MSCCLGO_PORT=4000 MSCCLGO_INTERFACE=eth1", "torchrun", 5, 8, 1, 4, "[::1]:4000", "eth1", "", ""},
		{"torchrun inside Slurm", ranks + slurm + "MASTER_ADDR=node0 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none MSCCLGO_SECRET=s", "torchrun", 5, 8, 1, 4, "node0:29502", "", "", ""},
		{"torchrun with an identifier and a secret", ranks + "MASTER_ADDR=node0 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=r MSCCLGO_SECRET=s", "torchrun", 5, 8, 1, 4, "node0:29502", "", "", ""},
		{"torchrun with an identifier, one machine", "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=r",
			"torchrun", 1, 2, 1, 2, "127.0.0.1:29502", "", "", ""},
		{"Open MPI, one machine", ompi + "PMIX_NAMESPACE=prterun-node-1", "Open MPI's mpirun", 2, 4, 2, 4, "", "", "", "127.0.0.1"},
		{"Open MPI, several", "OMPI_COMM_WORLD_RANK=6 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_MCA_ess_base_jobid=99 MASTER_ADDR=head MSCCLGO_ADVERTISE=me MSCCLGO_SECRET=s",
			"Open MPI's mpirun", 6, 8, 2, 4, "", "", "me", "head"},
		{"Open MPI inside Slurm", ompi + slurm + "PMIX_NAMESPACE=1", "Open MPI's mpirun", 2, 4, 2, 4, "", "", "", "127.0.0.1"},
		{"Open MPI, one machine with an address", ompi + "PMIX_NAMESPACE=prterun-node-1 MASTER_ADDR=node", "Open MPI's mpirun", 2, 4, 2, 4, "", "", "", "127.0.0.1"},
		{"MPICH, one machine with a name", "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_KVSNAME=kvs_1_0_2_h MASTER_ADDR=h", "MPICH's mpiexec", 1, 2, 1, 2, "", "", "", "127.0.0.1"},
		{"MPICH", "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 MSCCLGO_SECRET=s", "MPICH's mpiexec", 1, 2, 1, 2, "", "", "", "127.0.0.1"},
		{"MPICH, one machine without a secret", "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_JOBID=7", "MPICH's mpiexec", 1, 2, 1, 2, "", "", "", "127.0.0.1"},
		{"MPICH, one rank a machine", "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 MSCCLGO_SECRET=s MASTER_ADDR=h MASTER_PORT=10", "MPICH's mpiexec", 1, 2, 0, 1, "h:12", "", "", ""},
		{"srun", slurm + "SLURM_STEP_NODELIST=gpu[003-007,12],login1 MSCCLGO_SECRET=s", "srun", 5, 11, 1, 4, "", "", "", "gpu003"},
		{"srun, one machine", alone + "SLURM_STEP_NODELIST=gpu003", "srun", 1, 4, 1, 4, "", "", "", "127.0.0.1"},
		{"srun, one machine with an address", alone + "MASTER_ADDR=gpu003 MASTER_PORT=29500", "srun", 1, 4, 1, 4, "127.0.0.1:29502", "", "", ""},
		{"srun, one machine with a secret", alone + "SLURM_STEP_NODELIST=gpu003 MSCCLGO_SECRET=s", "srun", 1, 4, 1, 4, "", "", "", "gpu003"},
		{"srun --mpi=pmi2", slurm + "PMI_RANK=5 PMI_SIZE=11 PMI_JOBID=77.0 SLURM_STEP_NODELIST=gpu[003-007,12],login1 MSCCLGO_SECRET=s", "srun", 5, 11, 1, 4, "", "", "", "gpu003"},
		{"srun --mpi=pmi2, one machine", alone + "PMI_RANK=1 PMI_SIZE=4 PMI_JOBID=77.0 SLURM_STEP_NODELIST=gpu003", "srun", 1, 4, 1, 4, "", "", "", "127.0.0.1"},
		{"MPICH inside Slurm", slurm + "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_JOBID=7", "MPICH's mpiexec", 1, 2, 1, 2, "", "", "", "127.0.0.1"},
		{"srun, names with two numbers", slurm + "SLURM_STEP_NODELIST=rack[1-2]node[03,05-07]x,login[1-2] MSCCLGO_SECRET=s", "srun", 5, 11, 1, 4, "", "", "", "rack1node03x"},
		{"srun, a step smaller than the job", slurm + "SLURM_STEP_NUM_TASKS=7 SLURM_NODELIST=a,b MASTER_PORT=100 MSCCLGO_SECRET=s", "srun", 5, 7, 1, 4, "a:102", "", "", ""},
		{"srun with an id", slurm + "MSCCLGO_ID=" + id.String(), "srun", 5, 11, 1, 4, id.Addr(), "", "", ""},
		{"Kubernetes", "JOB_COMPLETION_INDEX=3 WORLD_SIZE=4 MASTER_ADDR=job-0.svc MASTER_PORT=23456 MSCCLGO_SECRET=x", "a Kubernetes indexed job", 3, 4, 0, 1, "job-0.svc:23458", "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			env, err := FromEnv(environment(c.env))
			if err != nil {
				t.Fatal(err)
			}
			want := Env{
				Options:   Options{Rank: c.rank, Size: c.size, Interface: c.interfaceName, Advertise: c.advertise},
				LocalRank: c.localRank, LocalSize: c.localSize, Launcher: c.launcher,
			}
			if diff := cmp.Diff(want, env, cmpopts.IgnoreFields(Options{}, "ID")); diff != "" {
				t.Errorf("the environment (-want +got):\n%s", diff)
			}
			addr := env.Options.ID.Addr()
			if c.addrHost != "" {
				port := int(env.Options.ID.port)
				if want := fmt.Sprintf("%s:%d", c.addrHost, port); addr != want || port < 20000 || port > 31999 {
					t.Errorf("address %s, want %s with a port from 20000 to 31999", addr, want)
				}
			} else if addr != c.addr {
				t.Errorf("address %s, want %s", addr, c.addr)
			}
			if !env.Options.ID.hosted {
				t.Error("nobody opens the rendezvous")
			}
			if !InGroupEnv(environment(c.env)) {
				t.Error("not taken for a launcher's environment")
			}
		})
	}
}

func TestFromEnvErrors(t *testing.T) {
	for env, want := range map[string][]string{
		"":                                {"RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX: start", `"mscclgo run -n 4 PROGRAM"`, `"python -m mscclgo run -n 4 PROGRAM.py"`, "torchrun, mpirun or srun"},
		"MSCCLGO_ID=x":                    {"MSCCLGO_ID", "RANK"},
		"RANK=1":                          {"RANK=1", "WORLD_SIZE"},
		"RANK=5 WORLD_SIZE=4":             {"RANK=5", "WORLD_SIZE=4", "0 to 3"},
		"RANK=-1 WORLD_SIZE=4":            {`RANK="-1"`},
		"RANK=one WORLD_SIZE=4":           {`RANK="one"`},
		"RANK=0 WORLD_SIZE=0":             {`WORLD_SIZE="0"`},
		"RANK=0 WORLD_SIZE=4 LOCAL_RANK=": {"MASTER_ADDR", "MSCCLGO_ID"},
		"RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=8":                                                   {"LOCAL_WORLD_SIZE=8", "WORLD_SIZE=4"},
		"RANK=0 WORLD_SIZE=4 LOCAL_RANK=4":                                                                      {"LOCAL_RANK=4", "WORLD_SIZE=4"},
		"RANK=0 WORLD_SIZE=4 LOCAL_RANK=2 MASTER_ADDR=h MASTER_PORT=1":                                          {"MSCCLGO_SECRET"},
		"RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2":                                                                {"LOCAL_RANK"},
		"RANK=0 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2":                                                   {"LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"},
		"RANK=0 WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=1":                                                       {"MSCCLGO_SECRET"},
		"RANK=0 WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=1 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=3": {"torchrun", "MSCCLGO_SECRET", "one output of"},
		"RANK=0 WORLD_SIZE=4 MASTER_ADDR=localhost":                                                             {"MSCCLGO_PORT", "MASTER_PORT"},
		"RANK=0 WORLD_SIZE=4 MASTER_ADDR=h;w MASTER_PORT=1":                                                     {"MASTER_ADDR", "';'"},
		"RANK=0 WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=65534":                                                   {"MASTER_PORT=65534", "MSCCLGO_PORT"},
		"RANK=0 WORLD_SIZE=4 MASTER_ADDR=h MSCCLGO_PORT=65536":                                                  {"MSCCLGO_PORT=65536", "1 to 65535"},
		"RANK=0 WORLD_SIZE=4 MASTER_ADDR=h:1 MASTER_PORT=1":                                                     {"MASTER_ADDR", "port"},
		"RANK=0 WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=x":                                                       {`MASTER_PORT="x"`},
		"RANK=0 WORLD_SIZE=1 MSCCLGO_BOOTSTRAP_TLS=maybe":                                                       {`MSCCLGO_BOOTSTRAP_TLS="maybe"`},
		"RANK=0 WORLD_SIZE=4 MSCCLGO_ID=nonsense":                                                               {"MSCCLGO_ID", "8 characters"},
		"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 PMIX_NAMESPACE=prterun-h-7@1 MASTER_ADDR=h":                            {"Open MPI's mpirun shares no secret", `"export MSCCLGO_SECRET=$(openssl rand -hex 16)" before it starts them with its option "-x MSCCLGO_SECRET"`},
		"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_MCA_ess_base_jobid=9 OMPI_MCA_orte_hnp_uri=9.0;tcp://10.0.0.1:99": {"MASTER_ADDR is not set, and only 1 of 2", "-x MSCCLGO_SECRET"},
		"PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 PMI_KVSNAME=kvs_1_0_2_h MASTER_ADDR=h":                                                                               {"MPICH's mpiexec", "MSCCLGO_SECRET"},
		"OMPI_COMM_WORLD_RANK=0":                                                                               {"OMPI_COMM_WORLD_SIZE"},
		"PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2":                                            {"MSCCLGO_SECRET", "PMI_JOBID"},
		"PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1":                                            {"MASTER_ADDR", "1 of 2"},
		"PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 PMI_JOBID=7 SLURM_JOB_ID=7 MASTER_ADDR=h":   {"MPICH's mpiexec", `"export MSCCLGO_SECRET=$(openssl rand -hex 16)"`},
		"SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_JOB_ID=7 SLURM_NTASKS=2 SLURM_NODELIST=a,b":                      {"srun", `set MSCCLGO_SECRET to the same random text for all, by "export MSCCLGO_SECRET=$(openssl rand -hex 16)" before it starts them`},
		"SLURM_PROCID=0 SLURM_STEP_ID=0":                                                                       {"SLURM_STEP_NUM_TASKS"},
		"SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=1":                                                        {"SLURM_STEP_NODELIST", "MASTER_ADDR"},
		"SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=1 SLURM_NODELIST=a[b":                                     {"SLURM_NODELIST", "bracket"},
		"SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=1 SLURM_NODELIST=a[]":                                     {"SLURM_NODELIST", "number"},
		"SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=9 SLURM_LOCALID=0 SLURM_TASKS_PER_NODE=4(x":               {"SLURM_TASKS_PER_NODE"},
		"SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=9 SLURM_LOCALID=0 SLURM_TASKS_PER_NODE=0":                 {`SLURM_TASKS_PER_NODE="0" is not a list`},
		"SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=9 SLURM_LOCALID=0 SLURM_TASKS_PER_NODE=4 SLURM_NODEID=1":  {"SLURM_TASKS_PER_NODE", "SLURM_NODEID=1"},
		"SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=9 SLURM_LOCALID=0 SLURM_TASKS_PER_NODE=4 SLURM_NODEID=-1": {"SLURM_NODEID"},
		"JOB_COMPLETION_INDEX=0":                                          {"WORLD_SIZE"},
		"JOB_COMPLETION_INDEX=4 WORLD_SIZE=4 MASTER_ADDR=a":               {"JOB_COMPLETION_INDEX=4"},
		"JOB_COMPLETION_INDEX=0 WORLD_SIZE=4":                             {"MASTER_ADDR"},
		"JOB_COMPLETION_INDEX=0 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=9": {"MSCCLGO_SECRET"},
	} {
		_, err := FromEnv(environment(env))
		if !errors.Is(err, mscclgo.ErrInvalid) {
			t.Errorf("%s: %v", env, err)
			continue
		}
		wantError(t, err, mscclgo.ErrInvalid, want...)
	}
}

// Ranks of several machines that have no secret but torchrun's identifier join, and are told who
// else may.
func TestWarning(t *testing.T) {
	const run = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=node0 MASTER_PORT=29500 TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_RUN_ID=job7"
	env, err := FromEnv(environment(run))
	if err != nil {
		t.Fatal(err)
	}
	if addr := env.Options.ID.Addr(); addr != "node0:29502" {
		t.Errorf("the rendezvous is at %s", addr)
	}
	for _, want := range []string{"--rdzv-id", "other users of the ranks' machines", "set MSCCLGO_SECRET", "openssl rand"} {
		if !strings.Contains(env.Warning, want) {
			t.Errorf("the warning lacks %q: %s", want, env.Warning)
		}
	}
	if strings.Contains(env.Warning, "job7") {
		t.Errorf("the warning tells the identifier: %s", env.Warning)
	}
}

func TestInGroupEnv(t *testing.T) {
	for _, env := range []string{
		"", "HOME=/ WORLD_SIZE=4", "RANK=",
		"SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=8", // a batch script, not under srun
	} {
		if InGroupEnv(environment(env)) {
			t.Errorf("%q is taken for a launcher's environment", env)
		}
	}
}

// TestRankVariables tells what to unset for a process to be on its own, and nothing that is not its rank's.
func TestRankVariables(t *testing.T) {
	for env, want := range map[string][]string{
		"":                                      nil,
		"RANK=":                                 nil,
		"WORLD_SIZE=4":                          nil,
		"MSCCLGO_ID=x":                          {"MSCCLGO_ID"},
		"PMI_RANK=1":                            {"PMI_RANK"},
		"SLURM_PROCID=0":                        nil, // a batch script
		"MSCCLGO_ID=x RANK=1 SLURM_PROCID=0":    {"MSCCLGO_ID", "RANK"},
		"SLURM_PROCID=1 SLURM_STEP_ID=0 RANK=1": {"RANK", "SLURM_PROCID"},
		"SLURM_PROCID=1 SLURM_STEP_ID=0 PMI_RANK=1":     {"PMI_RANK", "SLURM_PROCID"}, // srun --mpi=pmi2
		"OMPI_COMM_WORLD_RANK=0 JOB_COMPLETION_INDEX=1": {"OMPI_COMM_WORLD_RANK", "JOB_COMPLETION_INDEX"},
	} {
		testcmp.Equal(t, env, RankVariables(environment(env)), want)
		left := strings.Fields(env)
		left = slices.DeleteFunc(left, func(v string) bool {
			name, _, _ := strings.Cut(v, "=")
			return slices.Contains(want, name)
		})
		if InGroupEnv(environment(strings.Join(left, " "))) {
			t.Errorf("%q: without %v it is a rank", env, want)
		}
	}
}

// All ranks of a job derive one id, and other jobs another; a secret matters.
func TestDerivedIDs(t *testing.T) {
	base := map[string]string{"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "29500",
		"TORCHELASTIC_RUN_ID": "a", "MSCCLGO_SECRET": "s"}
	derived := func(change, to string) UniqueID {
		vars := maps.Clone(base)
		vars[change] = to
		env, err := FromEnv(func(n string) (string, bool) { v, ok := vars[n]; return v, ok })
		if err != nil {
			t.Fatal(err)
		}
		return env.Options.ID
	}
	rank0 := derived("RANK", "0")
	if rank0.String() != derived("RANK", "3").String() {
		t.Error("two ranks of a job derive different ids")
	}
	if other := derived("MSCCLGO_SECRET", "z"); other.secret() == rank0.secret() || other.group != rank0.group || other.port != rank0.port {
		t.Error("another secret derives the same secret, or shows in the group or the port")
	}
	base["MSCCLGO_SECRET"] = ""
	job := derived("RANK", "0")
	if other := derived("TORCHELASTIC_RUN_ID", "b"); other.secret() == job.secret() || other.group != job.group {
		t.Error("a job that stands in for the secret derives the same secret, or shows in the group")
	}
	base["MSCCLGO_SECRET"] = "s"
	for change, to := range map[string]string{
		"TORCHELASTIC_RUN_ID": "b", "TORCHELASTIC_RESTART_COUNT": "1", "MASTER_PORT": "29600", "MASTER_ADDR": "i",
	} {
		if other := derived(change, to); other.secret() == rank0.secret() || other.group == rank0.group {
			t.Errorf("another %s derives the same secret or group", change)
		}
	}
}

// A group forms from nothing but what mpirun sets, or srun on one machine.
func TestConnectFromEnv(t *testing.T) {
	for name, env := range map[string]string{
		"mpirun": "OMPI_COMM_WORLD_RANK=%[1]d OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=%[1]d OMPI_COMM_WORLD_LOCAL_SIZE=3 PMIX_NAMESPACE=%[2]s",
		"srun": "SLURM_PROCID=%[1]d SLURM_NTASKS=3 SLURM_LOCALID=%[1]d SLURM_STEP_TASKS_PER_NODE=3 SLURM_STEP_NODELIST=not-a-host " +
			"SLURM_STEP_ID=0 SLURM_JOB_ID=%[2]s",
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			opts := make([]Options, 3)
			job := rand.Text() // another port each time
			for rank := range opts {
				env, err := FromEnv(environment(fmt.Sprintf(env, rank, job)))
				if err != nil {
					t.Fatal(err)
				}
				opts[rank] = env.Options
			}
			ctx := testContext(t)
			bs, errs := connectAll(ctx, opts)
			defer closeAll(bs)
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			each(t, bs, func(b *Bootstrap) error { return b.Barrier(ctx) })
		})
	}
}

func FuzzFirstHost(f *testing.F) {
	f.Add("gpu[003-007,12],login1")
	f.Add("a,b")
	f.Add("r[1]n[2]")
	f.Add("[0]")
	f.Fuzz(func(t *testing.T, list string) {
		if host, err := firstHost(list); err == nil && (checkHost(host) != nil || strings.ContainsAny(host, ",[]")) {
			t.Fatalf("%q starts with %q", list, host)
		}
	})
}

// The secret and the port of text that may be easy to guess, computed by another program
// (hashlib.pbkdf2_hmac and HKDF in Python), and computed once.
func TestWeakSecretIsStretched(t *testing.T) {
	env := map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1", "TORCHELASTIC_RUN_ID": "4711"}
	got, err := FromEnv(func(name string) (string, bool) { s, ok := env[name]; return s, ok })
	if err != nil {
		t.Fatal(err)
	}
	id := got.Options.ID
	secret := id.secret()
	const wantSecret, wantPort = "07b896528dee9b602a6c6af6ede3c3f58d6490154f04cec31562d81592201199", 20795
	if hex.EncodeToString(secret[:]) != wantSecret || id.port != wantPort {
		t.Errorf("secret %x and port %d, want %s and %d", secret, id.port, wantSecret, wantPort)
	}
	start := time.Now()
	for range 1000 {
		copied := id
		copied.secret()
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %v to use it again", took)
	}
}
