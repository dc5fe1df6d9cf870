// Package framework starts real control planes for tests: Trigate by its local
// runner, and stock kube-apiserver with the same flags beside it, so that a test
// can ask both the same and compare.
//
// All programs are real processes. They are taken from the folder that TRIGATE_BIN
// names, where `make build test-binaries` has put them, or built into a folder of
// their own if it is not set.
package framework

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Timeout bounds every wait of the tests. It is generous, since machines that run
// tests are slow at times; nothing waits longer than it has to.
const Timeout = 2 * time.Minute

// pollInterval is how often Eventually looks again.
const pollInterval = 50 * time.Millisecond

// Main runs the tests of a package and then stops whatever control planes they
// shared. It is to be called from TestMain.
func Main(m *testing.M) {
	code := m.Run()
	if err := stopShared(); err != nil {
		fmt.Fprintf(os.Stderr, "stopping the shared control planes: %v\n", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// Eventually calls check until it returns nil, and fails the test with its last
// error when Timeout is over.
func Eventually(tb testing.TB, what string, check func() error) {
	tb.Helper()
	EventuallyWithin(tb, Timeout, what, check)
}

// EventuallyWithin is Eventually with a time limit of its own.
func EventuallyWithin(tb testing.TB, limit time.Duration, what string, check func() error) {
	tb.Helper()
	if err := poll(context.Background(), limit, check); err != nil {
		tb.Fatalf("%s: not within %v: %v", what, limit, err)
	}
}

// poll calls check until it returns nil, ctx ends or limit is over.
func poll(ctx context.Context, limit time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-ticker.C:
		}
	}
}

// Root is the repository's root.
var Root = sync.OnceValues(func() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "buf.yaml")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no buf.yaml above the working directory: tests run inside the repository")
		}
		dir = parent
	}
})

// Real returns the path of a manifest that people really apply. They are data of
// other projects and lie beside the repository, in ../shared/real.
func Real(tb testing.TB, name string) string {
	tb.Helper()
	root, err := Root()
	if err != nil {
		tb.Fatal(err)
	}
	path := filepath.Join(root, "..", "shared", "real", name)
	if _, err := os.Stat(path); err != nil {
		tb.Fatalf("a real manifest is missing: %v", err)
	}
	return path
}

// Binary returns the path of a program, by its name in the Makefile.
func Binary(name string) (string, error) {
	dir, err := binDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("the program %s is missing: %w", name, err)
	}
	return path, nil
}

// binDir is the folder with the programs. Without TRIGATE_BIN they are built, once
// for each run of a test binary; the Makefile knows how.
var binDir = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("TRIGATE_BIN"); dir != "" {
		return dir, nil
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	build := exec.Command("make", "--no-print-directory", "-C", root, "build", "test-binaries")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("building the programs: %w", err)
	}
	return filepath.Join(root, "bin"), nil
})
