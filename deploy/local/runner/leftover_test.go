package runner

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestClearLeftovers(t *testing.T) {
	l := layout{t.TempDir()}
	if err := os.Mkdir(l.pids(), 0o700); err != nil {
		t.Fatal(err)
	}
	mine := sleeper(t, "--data="+l.etcd())
	stranger := sleeper(t, "--data="+l.dir+"-other/etcd")
	for name, content := range map[string]string{
		"etcd":      fmt.Sprintln(mine.Process.Pid),
		"authn":     fmt.Sprintln(stranger.Process.Pid),
		"authz":     "4194305\n", // above what Linux gives
		"admission": "",
		"gateway":   "-1\n",
	} {
		if err := os.WriteFile(l.pid(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var lines []string
	if err := clearLeftovers(t.Context(), l, func(line string) { lines = append(lines, line) }); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(l.pids()); err != nil || len(entries) > 0 {
		t.Errorf("left %v, %v", entries, err)
	}
	if want := fmt.Sprintf("etcd: process %d of an earlier run is still there, killing it", mine.Process.Pid); !slices.Equal(lines, []string{want}) {
		t.Errorf("reported %q, want %q", lines, want)
	}
	if err := mine.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the leftover ended with %v, want it killed", err)
	}
	if err := stranger.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the stranger: %v", err)
	}
}

// sleeper is a process with one more argument, which its shell does not look at.
func sleeper(t *testing.T, argument string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", "read line", "sh", argument)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	// The arguments are those of this program until the new one is loaded.
	for end, tick := time.Now().Add(10*time.Second), time.Tick(time.Millisecond); ; <-tick {
		arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid))
		if err == nil && strings.Contains(string(arguments), argument) {
			return cmd
		}
		if time.Now().After(end) {
			t.Fatalf("process %d did not start", cmd.Process.Pid)
		}
	}
}
