package main

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/topology"
)

var update = flag.Bool("update", false, "write the texts of testdata and docs/paths.svg anew")

// machineOf returns the file of one of the machines of topology's tests.
func machineOf(name string) string { return "../../topology/testdata/" + name + ".json" }

// golden compares a text with a file.
func golden(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		testerr.Check(t, os.WriteFile(file, []byte(text), 0o666))
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; go test ./cmd/mscclgo -run TestTopo -update writes it", err)
	}
	testcmp.Equal(t, file, text, string(want))
}

// TestTopoPredicts compares predictions for each machine with a text that people can read.
func TestTopoPredicts(t *testing.T) {
	for _, name := range []string{"switches", "bridges", "sockets", "cloud", "cards"} {
		var text strings.Builder
		for _, hosts := range []string{"1", "4"} {
			code, stdout, stderr := try("topo", "-load", machineOf(name), "-predict", "-kind", "all", "-hosts", hosts)
			if code != exitOK || stderr != "" {
				t.Fatalf("%s: %d, %s", name, code, stderr)
			}
			text.WriteString("-hosts " + hosts + "\n" + stdout + "\n")
		}
		golden(t, "testdata/"+name+".txt", text.String())
	}
	for _, args := range []string{"-predict", "-plot " + filepath.Join(t.TempDir(), "x.svg")} {
		code, _, stderr := try(append([]string{"topo", "-load", machineOf("laptop")}, strings.Fields(args)...)...)
		if code != exitFailed || !strings.Contains(stderr, "no GPU") {
			t.Errorf("%s of a laptop: %d, %s", args, code, stderr)
		}
	}
}

// TestTopoPlot finds that the plot of docs/PATHS.md is what the command there draws.
func TestTopoPlot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "paths.svg")
	if code, _, stderr := try("topo", "-load", machineOf("switches"), "-plot", file); code != exitOK {
		t.Fatal(stderr)
	}
	content := testerr.Must(os.ReadFile(file))(t)
	golden(t, "../../docs/paths.svg", string(content))
	for _, want := range []string{"ranks", "8K", "tree", "hier", "64K: time"} {
		if !strings.Contains(string(content), want) {
			t.Errorf("the plot lacks %q", want)
		}
	}
}

// TestTopoSaves saves a machine, this one and another, and prints what was saved.
func TestTopoSaves(t *testing.T) {
	file, picture := filepath.Join(t.TempDir(), "machine.json"), filepath.Join(t.TempDir(), "machine.svg")
	code, stdout, stderr := try("topo", "-save", file, "-svg", picture)
	if code != exitOK {
		t.Fatal(stderr)
	}
	if code, again, stderr := try("topo", "-load", file); code != exitOK || again != stdout {
		t.Errorf("%d, %s\n%s\nwas\n%s", code, stderr, again, stdout)
	}
	if svg, err := os.ReadFile(picture); err != nil || !strings.Contains(string(svg), "</svg>") {
		t.Errorf("%v, %.100q", err, svg)
	}
	if code, _, stderr := try("topo", "-load", machineOf("switches"), "-save", file); code != exitOK {
		t.Fatal(stderr)
	}
	got := testerr.Must(os.ReadFile(file))(t)
	want := testerr.Must(os.ReadFile(machineOf("switches")))(t)
	testcmp.Equal(t, "a machine that was loaded and saved", string(got), string(want))
}

func TestTopoJSON(t *testing.T) {
	code, stdout, stderr := try("topo", "-json", "-hosts", "2", "-load", machineOf("sockets"))
	if code != exitOK {
		t.Fatal(stderr)
	}
	var got struct {
		Machine json.RawMessage
		Hosts   int
		Rings   []struct {
			GPUs    []int
			In, Out string
		}
		NICs []struct {
			GPU int
			NIC string
		} `json:"nics_of_gpus"`
	}
	testerr.Check(t, json.Unmarshal([]byte(stdout), &got))
	m, err := topology.Read(strings.NewReader(string(got.Machine)))
	if err != nil || len(m.GPUs) != 8 || got.Hosts != 2 || len(got.Rings) != 4 || len(got.Rings[0].GPUs) != 8 || got.Rings[1].In != "mlx5_1" || len(got.NICs) != 8 || got.NICs[7].NIC != "mlx5_3" {
		t.Errorf("%v, %+v", err, got)
	}
	code, stdout, stderr = try("topo", "-json", "-load", machineOf("laptop"))
	if code != exitOK || !strings.Contains(stdout, `"rings": []`) {
		t.Errorf("a laptop: %d, %s%s", code, stdout, stderr)
	}
}

func TestTopoRefuses(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.json")
	testerr.Check(t, os.WriteFile(bad, []byte(`{"format":"mscclgo-machine","version":7}`), 0o666))
	for _, c := range []struct {
		args, stderr string
		code         int
	}{
		{"-hosts 0", "-hosts has to be", exitUsage},
		{"-hosts 99999999", "-hosts has to be", exitUsage},
		{"-predict -json", "no JSON", exitUsage},
		{"-svg picture.png", ".svg", exitUsage},
		{"-plot picture", ".svg", exitUsage},
		{"-predict -kind all-alone", "all-alone", exitUsage},
		{"-predict -kind=", "no collective", exitUsage},
		{"-kind all-to-all", "-kind is for -predict", exitUsage},
		{"-kind=", "-kind is for -predict", exitUsage},
		{"-kind all-reduce -plot x.svg", "-kind is for -predict", exitUsage},
		{"-svg x.svg -plot ./x.svg", "two flags name the file", exitUsage},
		{"-save x.svg -svg x.svg", "two flags name the file", exitUsage},
		{"here", "takes no argument", exitUsage},
		{"-load nowhere.json", "nowhere.json", exitFailed},
		{"-load " + bad, "version 7", exitFailed},
		{"-save " + filepath.Join(t.TempDir(), "no", "where"), "-save", exitFailed},
	} {
		code, stdout, stderr := try(append([]string{"topo"}, strings.Fields(c.args)...)...)
		if code != c.code || !strings.Contains(stderr, c.stderr) || stdout != "" {
			t.Errorf("%s: %d, %s%s; want %d, %q", c.args, code, stdout, stderr, c.code, c.stderr)
		}
	}
}
