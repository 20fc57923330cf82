package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/doctor"
	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/machine"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/launcher"
)

const (
	// checkTime bounds all checks of the doctor.
	checkTime = 2 * time.Minute
	// checkEnv is set for ranks that the doctor has started, to their kind of device.
	checkEnv = "MSCCLGO_DOCTOR"
)

func runDoctor(c *call) error {
	asJSON := c.flags.Bool("json", false, "print JSON; not in a rank of a group")
	require := c.flags.String("require", "", "`checks` that must be ok, with commas between; in a rank of a group ranks alone: "+strings.Join(doctor.Names(), ", "))
	svg := c.flags.String("svg", "", "`file` that gets a picture of the machine; not in a rank of a group")
	if err := c.parseOnly(); err != nil {
		return err
	}
	if err := endsInSVG("svg", *svg); err != nil {
		return &usageError{err.Error()}
	}
	var required []string
	if *require != "" {
		required = strings.Split(*require, ",")
	}
	for _, name := range required {
		if !slices.Contains(doctor.Names(), name) {
			return &usageError{fmt.Sprintf("-require: there is no check %q", name)}
		}
	}
	inGroup := bootstrap.InGroupEnv(os.LookupEnv)
	others := *asJSON || *svg != "" || slices.ContainsFunc(required, func(name string) bool { return name != "ranks" })
	if inGroup && others { // a script that asks for them would take their absence for success
		return &usageError{"a rank of a group makes only the check of ranks, without -json and -svg: " + aloneHint()}
	}
	ctx, end := interruptible(checkTime)
	defer end()
	if inGroup {
		return doctorRank(ctx, c)
	}
	report := doctor.Examine(ctx, doctor.ThisMachine(launchDoctor), required)
	var err error
	if *asJSON {
		e := json.NewEncoder(c.stdout)
		e.SetIndent("", "  ")
		err = e.Encode(report)
	} else {
		err = report.Print(c.stdout)
	}
	if err != nil {
		return err
	}
	if *svg != "" {
		if report.Machine == nil {
			return errors.New("-svg: the machine is unknown")
		}
		if err := os.WriteFile(*svg, machine.SVG(report.Machine), 0o666); err != nil {
			return fmt.Errorf("-svg: %w", err)
		}
	}
	if failed := report.Failed(); len(failed) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// aloneHint says how a process that a launcher has started is none of its ranks.
func aloneHint() string {
	set := strings.Join(bootstrap.RankVariables(os.LookupEnv), " ")
	return `to be none, unset what its launcher has set, by "unset ` + set + `"`
}

// doctorRank is a rank of a group in which every rank writes to every other one. The
// first prints what was found: as JSON if the doctor has started it, or for people if the
// user has, by mpirun for example.
func doctorRank(ctx context.Context, c *call) error {
	device, ours := os.LookupEnv(checkEnv)
	return communicator.Run(ctx, communicator.Options{Device: device}, func(ctx context.Context, comm *communicator.Communicator) error {
		f, err := doctor.Meet(ctx, comm, ours)
		if err != nil || comm.Rank() != 0 {
			return err
		}
		f.Name = "ranks"
		if ours {
			return json.NewEncoder(c.stdout).Encode(f)
		}
		report := doctor.Report{Findings: []doctor.Finding{f}}
		if env, err := bootstrap.FromEnv(os.LookupEnv); err == nil && env.Warning != "" {
			report.Findings = append(report.Findings, doctor.Finding{Name: "secret", State: doctor.Warning, Text: env.Warning})
		}
		if err := report.Print(c.stdout); err != nil {
			return err
		}
		if f.State == doctor.Failed {
			return errors.New(f.Text)
		}
		return nil
	})
}

// launchDoctor starts ranks on this machine.
func launchDoctor(ctx context.Context, n int, device string) (f doctor.Finding, err error) {
	program, err := os.Executable()
	if err != nil {
		return f, err
	}
	var stdout, stderr bytes.Buffer
	_, err = launcher.Run(ctx, launcher.Options{
		Ranks: n, Program: program, Args: []string{"doctor"}, Env: []string{checkEnv + "=" + device},
		Stdout: &stdout, Stderr: &stderr,
	})
	if err != nil {
		return f, fmt.Errorf("%w\n%s", err, strings.TrimSpace(stderr.String()))
	}
	return f, json.Unmarshal(stdout.Bytes(), &f)
}
