package node

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trigate/trigate/deploy/test/framework"
)

const (
	// apiAddress is by which pods know the API server. Only the node has it: what goes
	// there is led to the gateway on the loopback address.
	apiAddress = "10.215.0.1"
	// probeImage is the image of the probe.
	probeImage = "localhost/probe:v1"
)

// nodeRights are what the node's tools need beside the kubelet, which all use the
// kubelet's certificate: kube-proxy, DNS, and the script itself. The kubelet's own rights
// are those of the Node authorizer.
const nodeRights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: node-tools}
rules:
- {apiGroups: ["", discovery.k8s.io], resources: [services, endpointslices, namespaces, nodes], verbs: [get, list, watch]}
- {apiGroups: [networking.k8s.io], resources: [servicecidrs], verbs: [get, list, watch]}
- {apiGroups: ["", events.k8s.io], resources: [events], verbs: [create, patch, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: node-tools}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: node-tools}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:nodes"}]
`

// probeManifest is a Deployment with a Service, and a Secret that its pods mount.
const probeManifest = `
apiVersion: v1
kind: Secret
metadata: {name: mounted}
stringData: {word: hello}
---
apiVersion: v1
kind: Secret
metadata: {name: other}
stringData: {word: hidden}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: probe}
spec:
  replicas: 2
  selector: {matchLabels: {app: probe}}
  template:
    metadata: {labels: {app: probe}}
    spec:
      containers:
      - name: probe
        image: localhost/probe:v1
        ports: [{containerPort: 8080}]
        readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}
        volumeMounts: [{name: mounted, mountPath: /mounted}]
      volumes:
      - {name: mounted, secret: {secretName: mounted}}
---
apiVersion: v1
kind: Service
metadata: {name: probe}
spec:
  selector: {app: probe}
  ports: [{port: 80, targetPort: 8080}]
`

// TestTrigateIsTheAPIServer has Trigate be the API server of a real cluster: kubelet,
// scheduler, kube-proxy, controllers and DNS are stock, and the kubelet has a certificate
// of its own.
func TestTrigateIsTheAPIServer(t *testing.T) {
	tools := requirements(t)
	probe := buildProbe(t, tools)
	c := framework.StartTrigate(t, framework.TrigateOptions{Args: []string{
		"--gateway-arg=--advertise-address=" + apiAddress, "--gateway-arg=--endpoint-reconciler-type=lease",
	}})
	startKube(t, tools, "kube-scheduler", "--kubeconfig="+c.Kubeconfig, "--leader-elect=false", "--secure-port=0")
	c.MustKubectlInput(t, nodeRights, "apply", "-f", "-")
	kubelet := nodeKubeconfig(t, c)
	tools.startNode(t, kubelet, "NODE_IMAGES="+probe)

	namespace := c.Namespace(t)
	c.MustKubectlInput(t, probeManifest, "--namespace", namespace, "apply", "-f", "-")
	c.MustKubectl(t, "--namespace", namespace, "rollout", "status", "deployment/probe", "--timeout=2m")
	kubectl := func(args ...string) string {
		return c.MustKubectl(t, append([]string{"--namespace", namespace}, args...)...)
	}

	t.Run("logs", func(t *testing.T) {
		if got := kubectl("logs", "deployment/probe"); !strings.Contains(got, "the probe serves") {
			t.Errorf("logs = %q, want what the probe says", got)
		}
	})
	t.Run("a token from inside a pod", func(t *testing.T) {
		want := "system:serviceaccount:" + namespace + ":default"
		if got := strings.TrimSpace(kubectl("exec", "deployment/probe", "--", "/probe", "whoami")); got != want {
			t.Errorf("exec of whoami = %q, want %q", got, want)
		}
	})
	t.Run("port-forward", func(t *testing.T) {
		forward := c.KubectlStream(t, "--namespace", namespace, "port-forward", "deployment/probe", ":8080")
		line := forward.Next(t) // Forwarding from 127.0.0.1:12345 -> 8080
		address := strings.Fields(strings.TrimPrefix(line, "Forwarding from "))[0]
		wantAnswer(t, "http://"+address)
	})
	t.Run("a Service", func(t *testing.T) {
		address := kubectl("get", "service", "probe", "--output=jsonpath={.spec.clusterIP}")
		wantAnswer(t, "http://"+address)
	})
	t.Run("the kubelet may what its pods need", func(t *testing.T) {
		asKubelet := func(args ...string) framework.Result {
			return framework.RunKubectl(t, kubelet, "", append([]string{"--namespace", namespace}, args...)...)
		}
		if result := asKubelet("get", "secret", "mounted"); result.Code != 0 {
			t.Errorf("Secret of a pod on the node = %+v, want it", result)
		}
		if result := asKubelet("get", "secret", "other"); !strings.Contains(result.Stderr, "no relationship found between node") {
			t.Errorf("Secret of no pod on the node = %+v, want the Node authorizer's refusal", result)
		}
		c.MustKubectlInput(t, "{apiVersion: v1, kind: Node, metadata: {name: stranger}}", "create", "-f", "-")
		if result := asKubelet("label", "node", "stranger", "a=b"); !strings.Contains(result.Stderr, "is not allowed to modify node") {
			t.Errorf("label of another node = %+v, want NodeRestriction's refusal", result)
		}
		if result := asKubelet("label", "node", nodeName, "node-restriction.kubernetes.io/a=b"); !strings.Contains(result.Stderr, "is not allowed to modify labels") {
			t.Errorf("forbidden label of the node itself = %+v, want NodeRestriction's refusal", result)
		}
	})
	t.Run("a deleted Deployment", func(t *testing.T) {
		kubectl("delete", "deployment", "probe")
		kubectl("wait", "--for=delete", "pod", "--selector=app=probe", "--timeout=2m")
	})
}

// buildProbe makes the probe's image.
func buildProbe(t *testing.T, tools tools) string {
	t.Helper()
	program, image := filepath.Join(t.TempDir(), "probe"), filepath.Join(t.TempDir(), "probe.tar")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", program, "./probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the probe: %v\n%s", err, output)
	}
	pack := exec.CommandContext(t.Context(), filepath.Join(tools.scripts, "oci-scratch.sh"), probeImage, image, program, "/probe")
	if output, err := pack.CombinedOutput(); err != nil {
		t.Fatalf("packing the probe: %v\n%s", err, output)
	}
	return image
}

// nodeKubeconfig is the kubelet's, with the identity of a node and nothing more.
func nodeKubeconfig(t *testing.T, c *framework.Cluster) string {
	t.Helper()
	program, err := framework.Binary("trigate-pki")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubelet.kubeconfig")
	output, err := exec.CommandContext(t.Context(), program, "kubeconfig", "--dir="+c.PKI.Dir, "--server="+c.Config(t).Host,
		"--user=system:node:"+nodeName, "--group=system:nodes", "--output="+path).CombinedOutput()
	if err != nil {
		t.Fatalf("trigate-pki kubeconfig: %v\n%s", err, output)
	}
	return path
}

// wantAnswer asks the probe.
func wantAnswer(t *testing.T, url string) {
	t.Helper()
	framework.Eventually(t, "answer of "+url, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		if err != nil {
			return err
		}
		if !strings.Contains(string(body), "the probe answers") {
			return fmt.Errorf("answer %q, want the probe's", body)
		}
		return nil
	})
}
