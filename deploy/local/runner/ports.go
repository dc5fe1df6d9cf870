package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"syscall"
)

// loopback is where everything listens.
const loopback = "127.0.0.1"

// Ports that nobody asked for are taken from below the range that systems use for
// outgoing connections (32768 on Linux, 49152 elsewhere). In that range a
// connection of some other program could take the port while a child restarts, and
// a client that tries to reach a child that is down could even connect to itself.
const (
	firstFreePort = 20000
	lastFreePort  = 31999
)

// ports are the ports of the processes by name. They are kept in the directory so
// that addresses which people and processes remember stay true.
type ports map[string]int

// address is where a process listens.
func (p ports) address(process string) string {
	return net.JoinHostPort(loopback, strconv.Itoa(p[process]))
}

// choosePorts gives each process a port that is free now: the one it had, if that
// is free, or a new one. The first gateway's is the one asked for, unless that is
// 0; its siblings' are those that follow, if these are free.
func choosePorts(file string, gateways, others []string, asked int) (ports, error) {
	chosen, err := readPorts(file)
	if err != nil {
		return nil, err
	}
	picker := &portPicker{taken: map[int]bool{}, free: portIsFree}
	processes := slices.Concat(gateways, others)
	if asked != 0 {
		if err := checkFree(asked); err != nil {
			return nil, fmt.Errorf("--port %d: %w", asked, err)
		}
		picker.taken[asked] = true
		chosen[gateways[0]] = asked
		processes = processes[1:]
		for i, gateway := range gateways[1:] {
			if _, ok := chosen[gateway]; !ok {
				chosen[gateway] = asked + 1 + i
			}
		}
	}
	for _, process := range processes {
		if chosen[process], err = picker.pick(chosen[process]); err != nil {
			return nil, fmt.Errorf("choosing a port for %s: %w", process, err)
		}
	}
	data, err := json.MarshalIndent(chosen, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding the ports: %w", err)
	}
	if err := os.WriteFile(file, append(data, '\n'), 0o600); err != nil {
		return nil, fmt.Errorf("keeping the ports: %w", err)
	}
	return chosen, nil
}

// readPorts returns the ports of the last run, none if there was none.
func readPorts(file string) (ports, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return ports{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the ports of the last run: %w", err)
	}
	p := ports{}
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("reading the ports of the last run, %s: %w", file, err)
	}
	return p, nil
}

// portPicker never gives a port twice.
type portPicker struct {
	taken map[int]bool
	free  func(port int) bool
}

// pick returns the preferred port if it can, else any.
func (p *portPicker) pick(preferred int) (int, error) {
	if preferred > 0 && preferred <= 65535 && p.take(preferred) {
		return preferred, nil
	}
	const count = lastFreePort - firstFreePort + 1
	// Different runners that start together begin in different places.
	begin := rand.IntN(count)
	for i := range count {
		if port := firstFreePort + (begin+i)%count; p.take(port) {
			return port, nil
		}
	}
	return 0, fmt.Errorf("none of %d to %d is free", firstFreePort, lastFreePort)
}

func (p *portPicker) take(port int) bool {
	if p.taken[port] || !p.free(port) {
		return false
	}
	p.taken[port] = true
	return true
}

func portIsFree(port int) bool { return checkFree(port) == nil }

// checkFree tells why a port cannot be listened on, in few words.
func checkFree(port int) error {
	listener, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
	if err != nil {
		var errno syscall.Errno
		if errors.As(err, &errno) {
			return errno
		}
		return err
	}
	return listener.Close()
}
