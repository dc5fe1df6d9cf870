// Package gates tests `kubectl gates` against real processes: the plugin is run by the
// stock kubectl, which finds it in its PATH.
package gates

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) {
	// kubectl finds plugins in the PATH.
	plugin, err := framework.Binary("kubectl-gates")
	if err == nil {
		err = os.Setenv("PATH", filepath.Dir(plugin)+":"+os.Getenv("PATH"))
	}
	if err != nil {
		panic(err)
	}
	framework.Main(m)
}

// gates runs `kubectl gates` as the administrator.
func gates(t *testing.T, c *framework.Cluster, args ...string) framework.Result {
	t.Helper()
	return gatesInput(t, c, "", args...)
}

// gatesInput is gates with an input.
func gatesInput(t *testing.T, c *framework.Cluster, stdin string, args ...string) framework.Result {
	t.Helper()
	result := c.KubectlInput(t, stdin, append([]string{"gates"}, args...)...)
	if strings.Contains(result.Stdout+result.Stderr, "\x1b") {
		t.Errorf("kubectl gates %v has colours in a pipe:\n%q\n%q", args, result.Stdout, result.Stderr)
	}
	return result
}

// want wants an exit code, and each part in what was printed.
func want(t *testing.T, result framework.Result, code int, parts ...string) {
	t.Helper()
	if result.Code != code {
		t.Errorf("exit code %d, want %d\nstdout:\n%s\nstderr:\n%s", result.Code, code, result.Stdout, result.Stderr)
	}
	for _, part := range parts {
		if !strings.Contains(result.Stdout+result.Stderr, part) {
			t.Errorf("no %q in\nstdout:\n%s\nstderr:\n%s", part, result.Stdout, result.Stderr)
		}
	}
}
