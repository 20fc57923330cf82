package netlab_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/internal/test/netlab"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// limit bounds each test.
const limit = time.Minute

// dialEnv makes the test's program one that dials an address, for as long as patienceEnv says, and prints
// the result.
const (
	dialEnv     = "MSCCLGO_TEST_DIAL"
	patienceEnv = "MSCCLGO_TEST_PATIENCE"
)

// listenEnv makes it one that listens on an address and accepts.
const listenEnv = "MSCCLGO_TEST_LISTEN"

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(dialEnv) != "":
		start := time.Now()
		patience, err := time.ParseDuration(os.Getenv(patienceEnv))
		if err != nil {
			panic(err)
		}
		c, err := net.DialTimeout("tcp", os.Getenv(dialEnv), patience)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("connected in", time.Since(start))
		c.Close()
	case os.Getenv(listenEnv) != "":
		l, err := net.Listen("tcp", os.Getenv(listenEnv))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(l.Addr())
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			c.Close()
		}
	default:
		os.Exit(m.Run())
	}
}

// listen has a process listen on a host and returns its address.
func listen(t *testing.T, h *netlab.Host) string {
	t.Helper()
	program, err := os.Executable()
	testerr.Check(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	cmd := h.Command(ctx, program)
	cmd.Env = append(os.Environ(), listenEnv+"="+net.JoinHostPort(h.Address, "0"))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	testerr.Check(t, err)
	t.Cleanup(func() {
		cancel()
		cmd.Wait()
	})
	address := testerr.Must(bufio.NewReader(out).ReadString('\n'))(t)
	return strings.TrimSpace(address)
}

// dial has a process on a host dial an address and returns how long it took. A patience of more than 1 s
// allows for a first packet that is lost, which is sent again then.
func dial(t *testing.T, h *netlab.Host, address string, patience time.Duration) (time.Duration, error) {
	t.Helper()
	program, err := os.Executable()
	testerr.Check(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := h.Command(ctx, program)
	cmd.Env = append(os.Environ(), dialEnv+"="+address, patienceEnv+"="+patience.String())
	out, err := cmd.Output()
	text := strings.TrimSpace(string(out))
	took, connected := strings.CutPrefix(text, "connected in ")
	if err != nil || !connected {
		return 0, fmt.Errorf("%v: %s", err, text)
	}
	return time.ParseDuration(took)
}

func TestHostsReachEachOther(t *testing.T) {
	for _, o := range []netlab.Options{{}, {MTU: 1280}, {IPv6: true, MTU: 1280}} {
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			l := netlab.New(t, 3, o)
			address := listen(t, l.Hosts[0])
			for i, h := range l.Hosts {
				if _, err := dial(t, h, address, limit); err != nil {
					t.Errorf("host %d: %v", i, err)
				}
			}
			mtu := o.MTU
			if mtu == 0 {
				mtu = 1500
			}
			out, err := l.Hosts[1].Command(t.Context(), "ip", "link", "show", "dev", "eth0").Output()
			if want := fmt.Sprintf(" mtu %d ", mtu); err != nil || !strings.Contains(string(out), want) {
				t.Errorf("ip says %s, %v, want%s", out, err, want)
			}
		})
	}
}

// TestCut checks that a host without its cable, or whose packets are lost, reaches no other,
// and does again afterwards.
func TestCut(t *testing.T) {
	for name, c := range map[string]struct{ cut, mend func(*netlab.Host) }{
		"unplugged": {(*netlab.Host).Unplug, (*netlab.Host).Plug},
		"mute":      {(*netlab.Host).Mute, (*netlab.Host).Unmute},
	} {
		t.Run(name, func(t *testing.T) {
			l := netlab.New(t, 2, netlab.Options{})
			address := listen(t, l.Hosts[0])
			c.cut(l.Hosts[1])
			if took, err := dial(t, l.Hosts[1], address, time.Second); err == nil {
				t.Errorf("it connected in %v", took)
			}
			c.mend(l.Hosts[1])
			var err error
			for range 20 { // the bridge takes a moment
				if _, err = dial(t, l.Hosts[1], address, time.Second); err == nil {
					return
				}
			}
			t.Errorf("once it is mended: %v", err)
		})
	}
}

func TestImpair(t *testing.T) {
	l := netlab.New(t, 2, netlab.Options{})
	address := listen(t, l.Hosts[0])
	l.Hosts[0].Impair("delay", "70ms")
	if took, err := dial(t, l.Hosts[1], address, limit); err != nil || took < 70*time.Millisecond {
		t.Errorf("it connected in %v, %v", took, err)
	}
}

// namespaces lists those whose names begin with a prefix.
func namespaces(t *testing.T, prefix string) []string {
	t.Helper()
	out := testerr.Must(exec.Command("ip", "netns", "list").Output())(t)
	return slices.DeleteFunc(strings.Fields(string(out)), func(s string) bool { return !strings.HasPrefix(s, prefix) })
}

func TestNothingIsLeft(t *testing.T) {
	netlab.New(t, 1, netlab.Options{}) // or skip
	// Numbers of processes end at 4194304; see proc(5).
	const stale = "mscclgo-4194305-1-0"
	if out, err := exec.Command("ip", "netns", "add", stale).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	mine := fmt.Sprintf("mscclgo-%d-", os.Getpid())
	before := namespaces(t, mine)
	t.Run("lab", func(t *testing.T) {
		netlab.New(t, 2, netlab.Options{})
		if n := len(namespaces(t, mine)) - len(before); n != 3 {
			t.Errorf("a lab of two hosts has %d namespaces", n)
		}
	})
	if diff := cmp.Diff(before, namespaces(t, mine)); diff != "" {
		t.Errorf("namespaces before a lab and after it (-before +after):\n%s", diff)
	}
	if left := namespaces(t, stale); len(left) > 0 {
		t.Errorf("%q of a process that is gone is still there", left)
	}
}
