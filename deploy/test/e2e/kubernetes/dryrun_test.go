// Package kubernetes tests that API servers take the manifests of deploy/kubernetes: stock
// ones, which are to run them, and Trigate itself.
package kubernetes

import (
	"slices"
	"strings"
	"testing"

	"github.com/trigate/trigate/deploy/test/framework"
)

// TestMain stops the shared control planes.
func TestMain(m *testing.M) { framework.Main(m) }

// TestDryRun applies everything without leaving anything. Warnings count as well: Pod
// Security warns of Deployments whose pods it would not admit.
func TestDryRun(t *testing.T) {
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		crds := slices.Concat(
			[]string{framework.StubCRD("cert-manager.io", "v1", "Issuer"), framework.StubCRD("cert-manager.io", "v1", "Certificate")},
			[]string{framework.StubCRD("monitoring.coreos.com", "v1", "ServiceMonitor")},
		)
		c.MustKubectlInput(t, strings.Join(crds, ""), "apply", "-f", "-")
		c.MustKubectl(t, "wait", "--for=condition=Established", "customresourcedefinition", "--all", "--timeout=1m")
		// A dry run of a namespace makes none for what comes after it.
		c.MustKubectl(t, "apply", "-f", framework.Manifests(t, "base", "namespace.yaml"))
		apply := func(t *testing.T, dir string) {
			t.Helper()
			result := c.Kubectl(t, "apply", "--dry-run=server", "-k", dir)
			if result.Code != 0 || strings.Contains(result.Stderr, "Warning") {
				t.Errorf("apply = %+v, want success without warnings", result)
			}
			if !strings.Contains(result.Stdout, "deployment.apps/trigate-gateway created (server dry run)") && !strings.Contains(dir, "restore") {
				t.Errorf("apply says nothing of the gateway: %s", result.Stdout)
			}
		}
		for _, overlay := range []string{"single", "ha"} {
			t.Run(overlay, func(t *testing.T) { apply(t, framework.Overlay(t, overlay)) })
			for _, component := range []string{"cert-manager", "etcd-backup", "external-etcd", "monitoring", "outbound"} {
				t.Run(overlay+" with "+component, func(t *testing.T) { apply(t, framework.Overlay(t, overlay, component)) })
			}
			t.Run("restore of "+overlay, func(t *testing.T) { apply(t, framework.Manifests(t, "restore", overlay)) })
		}
	})
}
