package node

import (
	"strings"
	"testing"
	"time"

	"github.com/trigate/trigate/deploy/test/framework"
)

const (
	// singleLimit is how long overlay single may take from nothing to ready.
	singleLimit = 90 * time.Second
	// haLimit is the same for overlay ha, of which there is three times as much on the
	// one node.
	haLimit = 4 * time.Minute
)

// TestOnKubernetes runs Trigate as pods. The host cluster is one for all its parts.
func TestOnKubernetes(t *testing.T) {
	h := startHost(t)
	t.Run("single", func(t *testing.T) {
		installed := h.install(t, framework.Overlay(t, "single"), singleLimit)
		t.Run("tour", installed.tour)
		t.Run("memory", installed.memory)
	})
	t.Run("ha", func(t *testing.T) {
		installed := h.install(t, framework.Overlay(t, "ha"), haLimit)
		t.Run("tour", installed.tour)
		t.Run("disruptions", installed.disruptions)
		t.Run("renewal", installed.renewal)
		t.Run("memory", installed.memory)
		t.Run("restore", installed.restore)
	})
}

// tour is the README's first tour, through the gateway's Service.
func (c *trigate) tour(t *testing.T) {
	c.MustKubectl(t, "get", "namespaces")
	c.MustKubectl(t, "create", "namespace", "tour")
	c.MustKubectl(t, "--namespace", "tour", "create", "serviceaccount", "ann")
	token := strings.TrimSpace(c.MustKubectl(t, "--namespace", "tour", "create", "token", "ann"))
	asAnn := func(args ...string) framework.Result {
		// The certificate would come before the token.
		return c.Kubectl(t, append([]string{"--user=ann"}, args...)...)
	}
	c.MustKubectl(t, "config", "set-credentials", "ann", "--token="+token)
	if result := asAnn("auth", "whoami"); !strings.Contains(result.Stdout, "system:serviceaccount:tour:ann") {
		t.Errorf("auth whoami = %+v, want ann's name", result)
	}
	if result := asAnn("--namespace", "tour", "auth", "can-i", "list", "pods"); strings.TrimSpace(result.Stdout) != "no" {
		t.Errorf("can-i before the binding = %+v, want no", result)
	}
	c.MustKubectl(t, "--namespace", "tour", "create", "role", "reader", "--verb=list", "--resource=pods")
	c.MustKubectl(t, "--namespace", "tour", "create", "rolebinding", "ann-reads", "--role=reader", "--serviceaccount=tour:ann")
	if result := asAnn("--namespace", "tour", "auth", "can-i", "list", "pods"); strings.TrimSpace(result.Stdout) != "yes" {
		t.Errorf("can-i after the binding = %+v, want yes", result)
	}
	// The controllers come when the API has been there for a moment.
	c.MustKubectl(t, "--namespace", "tour", "wait", "--for=create", "serviceaccount/default", "--timeout=2m")
	c.MustKubectl(t, "label", "namespace", "tour", "pod-security.kubernetes.io/enforce=restricted")
	if result := c.Kubectl(t, "--namespace", "tour", "run", "shell", "--image=busybox"); result.Code == 0 ||
		!strings.Contains(result.Stderr, "violates PodSecurity") {
		t.Errorf("run of a pod that the policy forbids = %+v, want a refusal", result)
	}
	c.MustKubectl(t, "--namespace", "tour", "create", "deployment", "web", "--image=localhost/web:v1", "--replicas=2")
	c.MustKubectl(t, "--namespace", "tour", "wait", "--for=create", "replicaset", "--selector=app=web", "--timeout=2m")
	c.MustKubectl(t, "delete", "namespace", "tour", "--timeout=2m")
}
