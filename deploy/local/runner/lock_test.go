package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != fmt.Sprintln(os.Getpid()) {
		t.Errorf("lock file = %q, %v, want the process id", data, err)
	}
	_, err = lock(path)
	var inUse *inUseError
	if !errors.As(err, &inUse) || inUse.pid != strconv.Itoa(os.Getpid()) {
		t.Errorf("lock = %v, want an inUseError with this process", err)
	}
	unlock()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after unlock: %v, want no lock file", err)
	}
	if err := os.WriteFile(path, []byte("12345678\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	unlock, err = lock(path)
	if err != nil {
		t.Fatalf("lock over the file of a runner that died: %v", err)
	}
	unlock()
}
