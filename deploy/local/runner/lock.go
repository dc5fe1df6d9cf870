package runner

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// lock makes this process the only runner of a directory, until it dies or calls
// unlock. The lock file holds its process id.
func lock(path string) (unlock func(), err error) {
	for {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("opening the lock file: %w", err)
		}
		held, err := tryLock(file)
		if err != nil {
			_ = file.Close()
			return nil, err
		}
		if !held {
			// The file was removed by a runner that was just ending.
			_ = file.Close()
			continue
		}
		return func() {
			// In this order: who opens the file meanwhile sees that it is gone.
			_ = os.Remove(path)
			_ = file.Close()
		}, nil
	}
}

// tryLock returns false if the locked file is not the one that its path names.
func tryLock(file *os.File) (bool, error) {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		holder, _ := os.ReadFile(file.Name())
		return false, &inUseError{strings.TrimSpace(string(holder))}
	}
	if err != nil {
		return false, fmt.Errorf("locking %s: %w", file.Name(), err)
	}
	mine, err := file.Stat()
	if err != nil {
		return false, fmt.Errorf("locking %s: %w", file.Name(), err)
	}
	if named, err := os.Stat(file.Name()); err != nil || !os.SameFile(mine, named) {
		return false, nil
	}
	if err := file.Truncate(0); err != nil {
		return false, fmt.Errorf("locking: %w", err)
	}
	if _, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return false, fmt.Errorf("locking: %w", err)
	}
	return true, nil
}

// inUseError tells of another runner.
type inUseError struct{ pid string }

func (e *inUseError) Error() string {
	if e.pid == "" {
		return "in use by another trigate-local"
	}
	return "in use by another trigate-local, process " + e.pid
}
