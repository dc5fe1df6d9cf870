package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// leftoverGrace is what a process of a runner that died gets to die with it.
// Linux kills it at once; elsewhere it goes on until told.
const leftoverGrace = 500 * time.Millisecond

// clearLeftovers ends what a runner that was killed has left behind in a
// directory: process id files, and processes if they are still there. It must be
// called by who holds the directory's lock.
func clearLeftovers(ctx context.Context, l layout, report func(string)) error {
	files, err := filepath.Glob(filepath.Join(l.pids(), "*.pid"))
	if err != nil {
		return fmt.Errorf("looking for processes of an earlier run: %w", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".pid")
		data, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("reading a process id of an earlier run: %w", err)
		}
		// A number that makes no sense names no process.
		if pid, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil && pid > 1 {
			if err := endLeftover(ctx, l, name, pid, report); err != nil {
				return err
			}
		}
		if err := os.Remove(file); err != nil {
			return fmt.Errorf("removing a process id of an earlier run: %w", err)
		}
	}
	return nil
}

func endLeftover(ctx context.Context, l layout, name string, pid int, report func(string)) error {
	gone := func(context.Context) (bool, error) { return !belongs(pid, l.dir), nil }
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, leftoverGrace, true, gone)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	report(fmt.Sprintf("%s: process %d of an earlier run is still there, killing it", name, pid))
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("killing process %d (%s) of an earlier run: %w", pid, name, err)
	}
	if err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, 5*time.Second, true, gone); err != nil {
		return fmt.Errorf("killing process %d (%s) of an earlier run: %w", pid, name, err)
	}
	return nil
}

// belongs reports whether a process was started for a directory. Process ids are
// used again, so that the number alone says nothing; but each child of ours has
// files of its directory among its arguments. Where there is no /proc to tell, the
// process is taken for a stranger and left alone.
func belongs(pid int, dir string) bool {
	arguments, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return false
	}
	return bytes.Contains(arguments, []byte("="+dir+string(filepath.Separator)))
}
