package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// output is what run prints; it reads the page when the result is there.
type output struct {
	bytes.Buffer
	page string
	err  error
}

var address = regexp.MustCompile(`http://\S+`)

func (o *output) Write(p []byte) (int, error) {
	n, err := o.Buffer.Write(p)
	if bytes.Contains(p, []byte("pi is about")) {
		var resp *http.Response
		if resp, o.err = http.Get(address.FindString(o.String())); o.err == nil {
			var body []byte
			body, o.err = io.ReadAll(resp.Body)
			resp.Body.Close()
			o.page = string(body)
		}
	}
	return n, err
}

func TestDarts(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		var out output
		cfg := config{listen: "127.0.0.1:0", blocks: 4, threads: 32, rounds: 50, darts: 20}
		testerr.Check(t, run(ctx, comm, cfg, &out))
		if out.err != nil {
			return out.err
		}
		want := fmt.Sprintf(`mscclgo_proxy_triggers_total{kind="user-128",service="rank %d"} 200`, comm.Rank())
		if !strings.Contains(out.page, want) {
			return fmt.Errorf("the page lacks %q:\n%s", want, out.page)
		}
		return nil
	})
}

func TestAddressInUse(t *testing.T) {
	testgroup.Run(t, 1, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		if err := run(ctx, comm, config{listen: "not an address"}, io.Discard); err == nil {
			return fmt.Errorf("it ran without a page")
		}
		return nil
	})
}

func TestFlags(t *testing.T) {
	good := config{blocks: 1, threads: 1, rounds: 1, darts: 1}
	testerr.Report(t, good.check(0))
	if err := good.check(1); err == nil {
		t.Error("an argument: no error")
	}
	for _, cfg := range []config{
		{blocks: 0, threads: 1, rounds: 1, darts: 1}, {blocks: 1, threads: 0, rounds: 1, darts: 1},
		{blocks: 1, threads: 1, rounds: -1, darts: 1}, {blocks: 1, threads: 1, rounds: 1, darts: 0},
		{blocks: 1 << 17, threads: 1, rounds: 1, darts: 1}, {blocks: 1, threads: 1025, rounds: 1, darts: 1},
		{blocks: 1, threads: 1, rounds: 1 << 32, darts: 1}, {blocks: 1, threads: 1, rounds: 1, darts: math.MaxInt},
	} {
		if err := cfg.check(0); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
}
