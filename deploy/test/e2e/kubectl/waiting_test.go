package kubectl

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestWatchPrintsEachChange(t *testing.T) {
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		namespace := c.Namespace(t)
		c.MustKubectlInput(t, colours, "create", "--namespace", namespace, "--filename", "-")
		watch := c.KubectlStream(t, "get", "configmaps", "--namespace", namespace, "--selector", "app=colours",
			"--watch", "--output-watch-events", "--output", "jsonpath={.type} {.object.metadata.name} {.object.data.sky}{'\\n'}")
		expectLines(t, watch, "ADDED colours blue")
		c.MustKubectlInput(t, greyColours, "apply", "--server-side", "--force-conflicts", "--namespace", namespace, "--filename", "-")
		expectLines(t, watch, "MODIFIED colours grey")
		c.MustKubectlInput(t, otherColours, "create", "--namespace", namespace, "--filename", "-")
		expectLines(t, watch, "ADDED others ")
		c.MustKubectl(t, "label", "configmap", "others", "app-", "--namespace", namespace)
		expectLines(t, watch, "DELETED others ")
		c.MustKubectl(t, "delete", "configmap", "colours", "--namespace", namespace)
		expectLines(t, watch, "DELETED colours grey")
	})
}

func TestWatchPrintsTable(t *testing.T) {
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		namespace := c.Namespace(t)
		watch := c.KubectlStream(t, "get", "deployments", "--namespace", namespace, "--watch")
		c.MustKubectl(t, "create", "deployment", "web", "--image=web:1", "--replicas=0", "--namespace", namespace)
		for _, want := range [][]string{{"NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"}, {"web", "0/0", "0", "0"}} {
			if got := strings.Fields(watch.Next(t)); len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
				t.Errorf("kubectl get --watch printed %q, want %q", got, want)
			}
		}
	})
}

func TestDeleteWaitsForTheEnd(t *testing.T) {
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		namespace := c.Namespace(t)
		c.MustKubectlInput(t, finalized, "create", "--namespace", namespace, "--filename", "-")
		deletion := c.KubectlStream(t, "delete", "configmap", "finalized", "--wait", "--namespace", namespace)
		expectLines(t, deletion, fmt.Sprintf(`configmap "finalized" deleted from %s namespace`, namespace))
		if got := c.MustKubectl(t, "get", "configmap", "finalized", "--namespace", namespace, "--output", "jsonpath={.metadata.deletionTimestamp}"); got == "" {
			t.Error("the object with a finalizer has no deletion timestamp")
		}
		if !deletion.Running() {
			t.Error("kubectl delete --wait did not wait")
		}
		c.MustKubectl(t, "patch", "configmap", "finalized", "--type=merge", "--patch", `{"metadata": {"finalizers": null}}`, "--namespace", namespace)
		if code := deletion.Wait(t); code != 0 {
			t.Errorf("kubectl delete --wait: exit code = %d, want 0", code)
		}
	})
}

// TestBadCredentials compares what kubectl says when the server does not know who
// is calling.
func TestBadCredentials(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		const unauthorized = "error: You must be logged in to the server (the server has asked for the client to provide credentials)"
		for _, test := range []struct {
			name string
			user clientcmdapi.AuthInfo
			want string
		}{
			{"unknown token", clientcmdapi.AuthInfo{Token: "nobody's"}, unauthorized},
			{"token that is a broken JWT", clientcmdapi.AuthInfo{Token: "eyJhbGciOiJub25lIn0.e30."}, unauthorized},
		} {
			kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
			config := clientcmdapi.NewConfig()
			admin := c.Config(t)
			config.Clusters["c"] = &clientcmdapi.Cluster{Server: admin.Host, CertificateAuthorityData: admin.CAData}
			config.AuthInfos["u"] = &test.user
			config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
			config.CurrentContext = "x"
			if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
				t.Fatal(err)
			}
			for _, args := range [][]string{{"get", "pods"}, {"auth", "whoami"}, {"auth", "can-i", "get", "pods"}, {"version"}, {"api-versions"}} {
				result := framework.RunKubectl(t, kubeconfig, "", args...)
				transcript.SayKubectl(result, append(args, test.name)...)
				if args[0] == "get" && (result.Code != 1 || !strings.Contains(result.Stderr, test.want)) {
					t.Errorf("%s: kubectl get pods: exit code %d, stderr %q, want 1 and %q", test.name, result.Code, result.Stderr, test.want)
				}
			}
		}
	})
}

// expectLines wants kubectl to print these lines next.
func expectLines(t *testing.T, stream *framework.Stream, want ...string) {
	t.Helper()
	for _, line := range want {
		if diff := cmp.Diff(line, stream.Next(t)); diff != "" {
			t.Errorf("line of kubectl (-want +got):\n%s", diff)
		}
	}
}
