package main

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	// mostStrangers is how many connections strangers have open at a time.
	mostStrangers = 300
	// fewDescriptors is the limit of ranks on which twice as many strangers call. A run of many
	// steps, with groups beside each other, needs more than 500 for itself.
	fewDescriptors = 1024
)

// disturb connects strangers to the rendezvous and whatever the run's processes listen on,
// over TCP and at abstract Unix sockets, until stop is closed, with so many connections open at most. Some say nothing, and stay; the others
// send bytes that mean nothing.
func (r *run) disturb(rendezvous string, most int, random *rand.Rand, stop <-chan struct{}) (made int) {
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for {
		for _, at := range append(r.listeners(), listener{"tcp", rendezvous}) {
			conn, err := net.DialTimeout(at.network, at.address, time.Second)
			if err != nil {
				continue // it has ended, or its queue is full
			}
			made++
			if random.IntN(2) == 0 {
				noise := make([]byte, random.IntN(2000))
				for i := range noise {
					noise[i] = byte(random.Uint32())
				}
				conn.SetWriteDeadline(time.Now().Add(time.Second))
				if random.IntN(2) == 0 { // past the first look
					copy(noise, "MGHS")
				}
				conn.Write(noise)
			}
			if open = append(open, conn); len(open) > most {
				open[0].Close()
				open = open[1:]
			}
		}
		select {
		case <-stop:
			return made
		case <-time.After(time.Millisecond):
		}
	}
}

// A listener is where a process accepts connections.
type listener struct{ network, address string }

// listeners returns the listeners of the run's processes.
func (r *run) listeners() []listener {
	sockets := map[string]bool{} // inodes
	pids := r.processes()
	for _, pid := range pids {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, "socket:[") {
				sockets[strings.Trim(target, "socket:[]")] = true
			}
		}
	}
	if len(pids) == 0 {
		return nil
	}
	var all []listener
	const listens = "0A" // the state, in /proc/net/tcp
	lines(fmt.Sprintf("/proc/%d/net/tcp", pids[0]), func(f []string) {
		if len(f) > 9 && f[3] == listens && sockets[f[9]] {
			all = append(all, listener{"tcp", tcpAddress(f[1])})
		}
	})
	const accepts = "00010000" // the flag of a listening socket, in /proc/net/unix
	lines(fmt.Sprintf("/proc/%d/net/unix", pids[0]), func(f []string) {
		if len(f) > 7 && f[3] == accepts && sockets[f[6]] {
			network := "unix"
			if f[4] == "0005" {
				network = "unixpacket"
			}
			all = append(all, listener{network, f[7]})
		}
	})
	return all
}

// lines calls f with the fields of each line of a file.
func lines(path string, f func(fields []string)) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer file.Close()
	for s := bufio.NewScanner(file); s.Scan(); {
		f(strings.Fields(s.Text()))
	}
}

// tcpAddress converts an address as in /proc/net/tcp: the bytes of an IPv4 address in the
// machine's order, and the port.
func tcpAddress(text string) string {
	host, port, _ := strings.Cut(text, ":")
	ip, err := hex.DecodeString(host)
	n, err2 := strconv.ParseUint(port, 16, 16)
	if err != nil || err2 != nil || len(ip) != 4 {
		return ""
	}
	return fmt.Sprintf("%d.%d.%d.%d:%d", ip[3], ip[2], ip[1], ip[0], n)
}
