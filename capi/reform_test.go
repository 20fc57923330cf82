package capi

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestReformedKilled kills one of three processes, and has the others go on.
func TestReformedKilled(t *testing.T) {
	const n = 3
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	server := testerr.Must(bootstrap.NewElastic("127.0.0.1:0", bootstrap.ElasticOptions{Min: n - 1, Max: n, Settle: 2 * time.Second}))(t)
	defer server.Close()
	program := compile(t, "gcc", "c11", "testdata/check.c")
	kind, _, _ := strings.Cut(testdev.Name(t, 0), ":")
	var whole sync.WaitGroup
	whole.Add(n)
	var ended sync.WaitGroup
	for i := range n {
		cmd := exec.CommandContext(ctx, program, "all-reduces", kind)
		cmd.Env = append(os.Environ(), bootstrap.EnvID+"="+server.ID().String())
		cmd.Stderr = os.Stderr
		lines := testerr.Must(cmd.StdoutPipe())(t)
		testerr.Check(t, cmd.Start())
		ended.Go(func() {
			come := sync.OnceFunc(whole.Done)
			defer come()
			var text strings.Builder
			for scan := bufio.NewScanner(lines); scan.Scan(); {
				fmt.Fprintln(&text, scan.Text())
				if scan.Text() != fmt.Sprint(n, " ranks are right") {
					continue
				}
				come()
				if i == 1 {
					whole.Wait()
					cmd.Process.Kill()
				}
			}
			err := cmd.Wait()
			if i == 1 {
				return
			}
			got := text.String()
			if err != nil || !strings.HasSuffix(got, fmt.Sprintln(n-1, "ranks are right")) || !strings.Contains(got, "lost: ") {
				t.Errorf("process %d: %v\n%s", i, err, got)
			}
		})
	}
	ended.Wait()
}

// TestDismiss has what a re-formed group leaves be taken whole, or not at all while a call uses some of it.
func TestDismiss(t *testing.T) {
	const op = "re-form a group"
	handles := table{all: map[uint64]*object{}}
	old, next := &group{}, &group{}
	whole := handles.add(nil, aGroup, old, nil)
	names := map[*object]string{}
	add := func(name string, parent *object, k kind) *object {
		o := handles.add(parent, k, nil, nil)
		names[o] = name
		return o
	}
	device := add("the device", whole, aDevice)
	stream := add("a stream", device, aStream)
	channels := add("channels", whole, memoryChannels)
	proxy := add("the proxy", whole, aProxy)
	ports := add("port channels", proxy, portChannels)
	pipes := add("pipes", proxy, aPipes)
	part := add("a part", whole, aGroup)
	parts := add("channels of the part", part, memoryChannels)
	peers := add("peer memory", whole, aPeerMemory)
	call := add("a call", whole, aPrepared)

	pipes.users.Add(1)
	testerr.Expect(t, handles.dismissable(op, whole), mscclgo.ErrInvalid, "pipes")
	_, err := handles.dismiss(op, whole)
	testerr.Expect(t, err, mscclgo.ErrInvalid, "pipes")
	for o, name := range names {
		if !handles.has(o) || o != pipes && o.users.Load() != 0 {
			t.Errorf("%s is not as before", name)
		}
	}
	testcmp.Equal(t, "the ports' parent", ports.parent, proxy)
	pipes.done()

	testerr.Check(t, handles.dismissable(op, whole))
	taken := testerr.Must(handles.dismiss(op, whole))(t)
	var got []string
	for _, o := range taken {
		got = append(got, names[o])
		if handles.has(o) || o.begin() != gone {
			t.Errorf("%s is still there", names[o])
		}
	}
	testcmp.Equal(t, "what is taken", got, []string{names[parts], names[part], names[proxy], names[pipes]})

	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() {
			for handles.group(whole) != next { // a call of another thread finds one or the other
			}
		})
	}
	handles.follow(whole, next)
	calls.Wait()
	for _, o := range []*object{channels, ports, peers, call} {
		if !handles.has(o) || !whole.children[o] || o.parent != whole || !o.left.Load() {
			t.Errorf("%s is not to be carried", names[o])
		}
	}
	if !handles.has(device) || device.left.Load() || stream.left.Load() {
		t.Error("the device has gone, or its stream")
	}
	if again, err := handles.dismiss(op, whole); len(again) > 0 || err != nil {
		t.Errorf("there is more to take: %v, %v", again, err)
	}
}
