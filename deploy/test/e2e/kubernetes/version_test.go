package kubernetes

import (
	"os/exec"
	"regexp"
	"testing"

	"github.com/trigate/trigate/deploy/test/framework"
)

// TestVersion asks each program what it is.
func TestVersion(t *testing.T) {
	want := regexp.MustCompile(`^Trigate \S+, commit \S+ of \S+, Kubernetes v1\.\S+\n$`)
	for _, name := range []string{"trigate-gateway", "trigate-authn", "trigate-authz", "trigate-admission"} {
		path, err := framework.Binary(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := exec.CommandContext(t.Context(), path, "--version").CombinedOutput()
		if err != nil || !want.Match(got) {
			t.Errorf("%s --version = %q, %v, want %s", name, got, err, want)
		}
	}
}
