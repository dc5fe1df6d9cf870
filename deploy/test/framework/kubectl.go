package framework

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Result is what a run of kubectl gave.
type Result struct {
	// Stdout and Stderr are what it printed.
	Stdout, Stderr string
	// Code is its exit code.
	Code int
}

// Kubectl runs the stock kubectl as the administrator and returns what it gave,
// whatever its exit code.
func (c *Cluster) Kubectl(tb testing.TB, args ...string) Result {
	tb.Helper()
	return c.KubectlInput(tb, "", args...)
}

// KubectlInput is Kubectl with an input, for `-f -`.
func (c *Cluster) KubectlInput(tb testing.TB, stdin string, args ...string) Result {
	tb.Helper()
	return RunKubectl(tb, c.Kubeconfig, stdin, args...)
}

// MustKubectl is Kubectl for commands that have to succeed. It returns what was
// printed on stdout.
func (c *Cluster) MustKubectl(tb testing.TB, args ...string) string {
	tb.Helper()
	return c.MustKubectlInput(tb, "", args...)
}

// MustKubectlInput is MustKubectl with an input.
func (c *Cluster) MustKubectlInput(tb testing.TB, stdin string, args ...string) string {
	tb.Helper()
	result := c.KubectlInput(tb, stdin, args...)
	if result.Code != 0 {
		tb.Fatalf("%s: kubectl %s: exit code %d\nstdout: %s\nstderr: %s",
			c.Name, strings.Join(args, " "), result.Code, result.Stdout, result.Stderr)
	}
	return result.Stdout
}

// RunKubectl runs the stock kubectl with a kubeconfig of the caller's. Its caches
// stay with the kubeconfig, so that control planes do not mix.
func RunKubectl(tb testing.TB, kubeconfig, stdin string, args ...string) Result {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	cmd, err := kubectl(ctx, kubeconfig, args...)
	if err != nil {
		tb.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		tb.Fatalf("running kubectl %s: %v", strings.Join(args, " "), err)
	}
	if ctx.Err() != nil {
		tb.Fatalf("kubectl %s took longer than %v\nstdout: %s\nstderr: %s", strings.Join(args, " "), Timeout, &stdout, &stderr)
	}
	return Result{Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
}

// kubectl is the command of the stock kubectl, not yet started.
func kubectl(ctx context.Context, kubeconfig string, args ...string) (*exec.Cmd, error) {
	path, err := Binary("kubectl")
	if err != nil {
		return nil, err
	}
	home := filepath.Dir(kubeconfig)
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HOME="+home, "KUBECACHEDIR="+filepath.Join(home, "kubectl-cache"))
	return cmd, nil
}
