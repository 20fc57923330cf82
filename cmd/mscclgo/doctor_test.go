package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/doctor"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestDoctor examines this machine, whose emulated devices work.
func TestDoctor(t *testing.T) {
	svg := filepath.Join(t.TempDir(), "machine.svg")
	stdout, stderr, err := mscclgo(t, "doctor", "-json", "-svg", svg, "-require", "emulation,ranks")
	if err != nil {
		t.Fatalf("%v\n%s%s", err, stdout, stderr)
	}
	var report struct{ Findings []doctor.Finding }
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	var names []string
	for _, f := range report.Findings {
		names = append(names, f.Name)
	}
	testcmp.Equal(t, "the checks", names, doctor.Names())
	if picture, err := os.ReadFile(svg); err != nil || !strings.Contains(string(picture), "</svg>") {
		t.Errorf("the picture: %v, %.100q", err, picture)
	}
}

// TestDoctorRefuses has a picture that would not be one by its name: nothing is checked or written.
func TestDoctorRefuses(t *testing.T) {
	png := filepath.Join(t.TempDir(), "machine.png")
	code, stdout, stderr := try("doctor", "-svg", png)
	if code != exitUsage || !strings.Contains(stderr, "ends in .svg") || stdout != "" {
		t.Errorf("%d, %s%s", code, stdout, stderr)
	}
	if _, err := os.Stat(png); err == nil {
		t.Error("the file was written")
	}
}

// TestDoctorFinds has no compiler, and a transport that is misspelled.
func TestDoctorFinds(t *testing.T) {
	t.Setenv("CXX", "mscclgo-no-such-compiler")
	t.Setenv("MSCCLGO_TRANSPORTS", "carrier-pigeon")
	stdout, stderr, err := mscclgo(t, "doctor")
	if err == nil || !strings.Contains(stderr, "failed: emulation, ranks") {
		t.Errorf("%v, %s", err, stderr)
	}
	for _, want := range []string{"mscclgo-no-such-compiler", "carrier-pigeon", "-> apt-get install g++"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the report lacks %q:\n%s", want, stdout)
		}
	}
}

// TestDoctorInGroup runs the doctor as the ranks of a group that the user has started.
func TestDoctorInGroup(t *testing.T) {
	program, err := os.Executable()
	testerr.Check(t, err)
	stdout, stderr, err := mscclgo(t, "run", "-n", "3", "-prefix=false", "--", program, "doctor")
	if err != nil || !strings.Contains(stdout, "3 ranks on 1 host wrote 64 KiB to each other") {
		t.Errorf("%v\n%s%s", err, stdout, stderr)
	}
}

func TestDoctorUsage(t *testing.T) {
	if code, _, stderr := try("doctor", "-require", "emulation,everything"); code != exitUsage || !strings.Contains(stderr, `no check "everything"`) {
		t.Errorf("%d, %s", code, stderr)
	}
	_, stderr, err := mscclgo(t, "doctor", "-svg", filepath.Join(t.TempDir(), "nowhere", "x.svg"))
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != exitFailed || !strings.Contains(stderr, "-svg") {
		t.Errorf("%v, %s", err, stderr)
	}
}

// underSrun has the environment of a shell that srun has started.
func underSrun(t *testing.T) {
	for name, value := range map[string]string{"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": "7"} {
		t.Setenv(name, value)
	}
}

// TestDoctorUsageInGroup refuses in a rank what only the doctor of a machine does, which a script
// would take for done.
func TestDoctorUsageInGroup(t *testing.T) {
	underSrun(t)
	svg := filepath.Join(t.TempDir(), "machine.svg")
	for _, args := range [][]string{{"-require", "emulation"}, {"-require", "ranks,emulation"}, {"-json"}, {"-svg", svg}} {
		code, stdout, stderr := try(append([]string{"doctor"}, args...)...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, "only the check of ranks") || !strings.Contains(stderr, `"unset SLURM_PROCID"`) {
			t.Errorf("%q: code %d, standard output %q, standard error %q", args, code, stdout, stderr)
		}
	}
	stdout, stderr, err := mscclgo(t, "doctor", "-require", "ranks")
	if err != nil || !strings.Contains(stdout, "ranks") {
		t.Errorf("%v\n%s%s", err, stdout, stderr)
	}
}
