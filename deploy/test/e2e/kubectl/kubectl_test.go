// Package kubectl tests that a stock kubectl prints the same, with the same exit
// code, whether it talks to Trigate or to stock kube-apiserver.
package kubectl

import (
	"fmt"
	"strings"
	"testing"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

// step is a run of kubectl.
type step struct {
	// args are its arguments, separated by spaces. It works in the namespace of the
	// case, whose name stands for $NS.
	args string
	// stdin is its input, with $NS too.
	stdin string
	// code is the exit code that it has to have.
	code int
	// want are texts that it has to print, on stdout or stderr, with $NS too.
	want []string
	// differs has what it prints not compared: another test looks at the document.
	differs bool
	// until has it run again until it is as it has to be, for what controllers and
	// caches do in their time.
	until bool
}

// TestCommands runs the steps of each case in a namespace of its own, on both control
// planes, and wants all that is printed to be the same.
func TestCommands(t *testing.T) {
	for _, test := range commands {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
				namespace := transcript.Namespace(t)
				for _, s := range test.steps {
					s.run(t, c, transcript, namespace)
				}
			})
		})
	}
}

func (s step) run(t *testing.T, c *framework.Cluster, transcript *framework.Transcript, namespace string) {
	t.Helper()
	fill := strings.NewReplacer("$NS", namespace)
	args := strings.Fields(fill.Replace("--namespace=$NS " + s.args))
	var result framework.Result
	attempt := func() error {
		result = c.KubectlInput(t, fill.Replace(s.stdin), args...)
		if result.Code != s.code {
			return fmt.Errorf("exit code = %d, want %d", result.Code, s.code)
		}
		for _, want := range s.want {
			if want = fill.Replace(want); !strings.Contains(result.Stdout+result.Stderr, want) {
				return fmt.Errorf("%q is missing in what it printed", want)
			}
		}
		return nil
	}
	if s.until {
		framework.Eventually(t, "kubectl "+s.args, func() error {
			if err := attempt(); err != nil {
				return fmt.Errorf("%w\nstdout: %s\nstderr: %s", err, result.Stdout, result.Stderr)
			}
			return nil
		})
	} else if err := attempt(); err != nil {
		t.Errorf("kubectl %s: %v\nstdout: %s\nstderr: %s", s.args, err, result.Stdout, result.Stderr)
	}
	if !s.differs {
		transcript.SayKubectl(result, args...)
	}
}
