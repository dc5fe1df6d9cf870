// Package manifests tests that manifests which people apply to their clusters can
// be applied, unchanged.
package manifests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

func TestOnlineBoutiqueIsApplied(t *testing.T) {
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		file, namespace := framework.Real(t, "online-boutique.yaml"), c.Namespace(t)
		apply(t, c, file, namespace, 35)
		awaitNoDifference(t, c, file, namespace)
	})
}

func TestArgoCDIsApplied(t *testing.T) {
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		file := framework.Real(t, "argo-cd.yaml")
		namespace := c.Namespace(t)
		apply(t, c, file, namespace, 59)
		awaitNoDifference(t, c, file, namespace)
		t.Cleanup(func() {
			c.MustKubectl(t, "delete", "--namespace", namespace, "--filename", file, "--ignore-not-found", "--wait=false")
		})
		// Its custom resources are served.
		c.MustKubectl(t, "wait", "--for=condition=Established", "--timeout="+framework.Timeout.String(),
			"crd/applications.argoproj.io", "crd/applicationsets.argoproj.io", "crd/appprojects.argoproj.io")
		c.MustKubectlInput(t, appProject, "apply", "--server-side", "--namespace", namespace, "--filename", "-")
	})
}

const appProject = `
apiVersion: argoproj.io/v1alpha1
kind: AppProject
metadata:
  name: default
spec:
  sourceRepos: ["*"]
  destinations: [{namespace: "*", server: "*"}]
`

// The message and the name are those of the ValidatingAdmissionPolicy in the file.
const (
	safeUpgrades        = "safe-upgrades.gateway.networking.k8s.io"
	safeUpgradesMessage = "Installing CRDs with version before v1.5.0 is prohibited by default. " +
		"Uninstall ValidatingAdmissionPolicy " + safeUpgrades + " to install older versions."
)

func TestGatewayAPIIsAppliedOnceAndRefusedByItsOwnPolicyThen(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		file := framework.Real(t, "gateway-api.yaml")
		apply(t, c, file, "default", 12)
		t.Cleanup(func() {
			c.MustKubectl(t, "delete", "--filename", file, "--ignore-not-found", "--wait=false")
		})
		objects := read(t, file)
		awaitPolicy(t, c, objects[0])

		again := transcript.Kubectl(t, "apply", "--server-side", "--filename", file)
		if again.Code != 1 {
			t.Errorf("exit code = %d, want 1", again.Code)
		}
		var refused, passed []string
		for _, object := range objects {
			name := printedName(object)
			if object.GetKind() != "CustomResourceDefinition" {
				passed = append(passed, name+" serverside-applied")
				continue
			}
			refused = append(refused, fmt.Sprintf("Error from server (Invalid): %s %q is forbidden: "+
				"ValidatingAdmissionPolicy '%s' with binding '%s' denied request: %s",
				"customresourcedefinitions.apiextensions.k8s.io", object.GetName(), safeUpgrades, safeUpgrades, safeUpgradesMessage))
		}
		if diff := cmp.Diff(passed, lines(again.Stdout)); diff != "" {
			t.Errorf("stdout (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(refused, lines(again.Stderr)); diff != "" {
			t.Errorf("stderr (-want +got):\n%s", diff)
		}
	})
}

// apply applies a file of count objects and wants all of them to be there afterwards.
func apply(t *testing.T, c *framework.Cluster, file, namespace string, count int) {
	t.Helper()
	var want []string
	for _, object := range read(t, file) {
		want = append(want, printedName(object))
	}
	if len(want) != count {
		t.Fatalf("%s has %d objects, want %d", file, len(want), count)
	}
	slices.Sort(want)

	var applied []string
	for _, line := range lines(c.MustKubectl(t, "apply", "--server-side", "--namespace", namespace, "--filename", file)) {
		name, isApplied := strings.CutSuffix(line, " serverside-applied")
		if !isApplied {
			t.Errorf("kubectl apply printed %q", line)
		}
		applied = append(applied, name)
	}
	slices.Sort(applied)
	if diff := cmp.Diff(want, applied); diff != "" {
		t.Errorf("applied objects (-want +got):\n%s", diff)
	}

	there := lines(c.MustKubectl(t, "get", "--namespace", namespace, "--filename", file, "--output", "name"))
	slices.Sort(there)
	if diff := cmp.Diff(want, there); diff != "" {
		t.Errorf("objects that are there (-want +got):\n%s", diff)
	}
}

// awaitNoDifference wants the objects to be what the file says. It looks more than
// once, since a controller may write a status between the two requests that kubectl
// compares.
func awaitNoDifference(t *testing.T, c *framework.Cluster, file, namespace string) {
	t.Helper()
	framework.Eventually(t, "no difference to the file", func() error {
		result := c.Kubectl(t, "diff", "--server-side", "--namespace", namespace, "--filename", file)
		if result.Code != 0 {
			return fmt.Errorf("kubectl diff: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
		}
		return nil
	})
}

// awaitPolicy waits until the policy is in force: a policy is from the moment on
// that the server has read it, which is soon after it was written.
func awaitPolicy(t *testing.T, c *framework.Cluster, object *unstructured.Unstructured) {
	t.Helper()
	content, err := object.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	definitions := c.Dynamic(t).Resource(schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	})
	framework.Eventually(t, "policy in force", func() error {
		_, err := definitions.Patch(context.Background(), object.GetName(), types.ApplyPatchType, content,
			metav1.PatchOptions{FieldManager: "kubectl", DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsInvalid(err) {
			return fmt.Errorf("applying %s: got %v, want it refused", object.GetName(), err)
		}
		return nil
	})
}

// read returns the objects of a manifest.
func read(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			t.Fatalf("reading %s: %v", file, err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

// printedName is the object as kubectl names it.
func printedName(object *unstructured.Unstructured) string {
	kind := object.GroupVersionKind()
	name := strings.ToLower(kind.Kind)
	if kind.Group != "" {
		name += "." + kind.Group
	}
	return name + "/" + object.GetName()
}

func lines(text string) []string {
	return strings.Split(strings.TrimRight(text, "\n"), "\n")
}
