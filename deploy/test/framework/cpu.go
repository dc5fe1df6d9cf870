package framework

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// clockTick is the unit of CPU time in /proc, which Linux has fixed at 100 in a second.
const clockTick = 10 * time.Millisecond

// CPU returns the CPU time that all processes of the control plane have had so far:
// etcd, servers and controllers. Its processes are those with an argument that names
// its folder. The time of those that have ended is not in it.
func (c *Cluster) CPU(tb testing.TB) time.Duration {
	tb.Helper()
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		tb.Fatal(err)
	}
	var sum time.Duration
	processes := 0
	for _, path := range commands {
		command, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(command, []byte(c.Dir)) {
			continue // it may have ended
		}
		spent, err := cpuOf(filepath.Join(filepath.Dir(path), "stat"))
		if err != nil {
			tb.Fatal(err)
		}
		sum += spent
		processes++
	}
	if processes == 0 {
		tb.Fatalf("%s has no process with an argument that names %s", c.Name, c.Dir)
	}
	return sum
}

// cpuOf reads utime and stime, which proc(5) has as the fields 14 and 15.
func cpuOf(stat string) (time.Duration, error) {
	content, err := os.ReadFile(stat)
	if err != nil {
		return 0, err
	}
	// The second field is the program's name in parentheses, and may have spaces.
	fields := bytes.Fields(content[bytes.LastIndexByte(content, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("%s has too few fields: %s", stat, content)
	}
	var sum time.Duration
	for _, field := range fields[11:13] {
		ticks, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", stat, err)
		}
		sum += time.Duration(ticks) * clockTick
	}
	return sum, nil
}
