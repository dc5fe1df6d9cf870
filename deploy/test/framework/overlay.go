package framework

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Manifests is the path of a folder of deploy/kubernetes.
func Manifests(tb testing.TB, parts ...string) string {
	tb.Helper()
	root, err := Root()
	if err != nil {
		tb.Fatal(err)
	}
	return filepath.Join(append([]string{root, "deploy", "kubernetes"}, parts...)...)
}

// Overlay makes a kustomization of an overlay with components, as an operator would
// beside the repository's, and returns its folder. It is gone after the test.
func Overlay(tb testing.TB, overlay string, components ...string) string {
	tb.Helper()
	if len(components) == 0 {
		return Manifests(tb, "overlays", overlay)
	}
	// kustomize takes relative paths only.
	dir, err := filepath.EvalSymlinks(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	relative, err := filepath.Rel(dir, Manifests(tb))
	if err != nil {
		tb.Fatal(err)
	}
	content := fmt.Sprintf("namespace: trigate-system\nresources: [%s/overlays/%s]\ncomponents:\n", relative, overlay)
	for _, component := range components {
		content += fmt.Sprintf("- %s/components/%s\n", relative, component)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(content), 0o600); err != nil {
		tb.Fatal(err)
	}
	return dir
}

// StubCRD is a CustomResourceDefinition that takes any object of a kind, for manifests
// of operators that are not there.
func StubCRD(group, version, kind string) string {
	plural := strings.ToLower(kind) + "s"
	return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]s.%[2]s}
spec:
  group: %[2]s
  scope: Namespaced
  names: {plural: %[1]s, singular: %[4]s, kind: %[5]s}
  versions:
  - name: %[3]s
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
`, plural, group, version, strings.ToLower(kind), kind)
}
