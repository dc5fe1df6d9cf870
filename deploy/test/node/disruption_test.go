package node

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

// deployments are what is restarted one after the other.
var deployments = []string{"trigate-gateway", "trigate-authn", "trigate-authz", "trigate-admission", "trigate-controllers"}

// disruptions does to the parts what operators and nodes do, while clients write and read
// all the time. With three of everything, they never notice.
func (c *trigate) disruptions(t *testing.T) {
	l := c.startLoad(t)
	step := func(name string, disturb func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			disturb(t)
			l.proceeds(t)
			l.noFailures(t)
		})
	}
	for _, name := range deployments {
		step("restart "+name, func(t *testing.T) {
			c.host.MustKubectl(t, "--namespace", namespace, "rollout", "restart", "deployment/"+name)
			c.host.rolledOut(t, "deployment/"+name)
		})
	}
	for _, name := range append([]string{"trigate-etcd"}, deployments...) {
		step("delete a pod of "+name, func(t *testing.T) {
			component := strings.TrimPrefix(name, "trigate-")
			c.host.MustKubectl(t, "--namespace", namespace, "delete", "pod", c.host.podsOf(t, component)[0])
			c.host.settled(t)
		})
	}
	for _, name := range []string{"trigate-authn", "trigate-authz", "trigate-admission"} {
		step("scale "+name, func(t *testing.T) {
			for _, replicas := range []string{"1", "3", "1", "3"} {
				c.host.MustKubectl(t, "--namespace", namespace, "scale", "deployment/"+name, "--replicas="+replicas)
				c.host.rolledOut(t, "deployment/"+name)
				l.proceeds(t)
			}
		})
	}
	step("restart the leader of etcd", func(t *testing.T) {
		c.host.MustKubectl(t, "--namespace", namespace, "delete", "pod", c.etcdLeader(t))
		c.host.rolledOut(t, "statefulset/trigate-etcd")
	})
	l.nothingLost(t)
}

// podsOf are the names of the pods of a component.
func (h *host) podsOf(t *testing.T, component string) []string {
	t.Helper()
	list, err := h.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil {
			names = append(names, pod.Name)
		}
	}
	if len(names) == 0 {
		t.Fatalf("no pods of %s:\n%s", component, h.pods(t))
	}
	return names
}

// etcdLeader is the name of the pod that leads etcd.
func (c *trigate) etcdLeader(t *testing.T) string {
	t.Helper()
	var leader string
	framework.Eventually(t, "a leader of etcd", func() error {
		for _, pod := range c.host.podsOf(t, "etcd") {
			metrics, err := c.host.client.CoreV1().RESTClient().Get().
				Namespace(namespace).Resource("pods").Name(pod + ":2381").SubResource("proxy").Suffix("metrics").DoRaw(t.Context())
			if err != nil {
				return err
			}
			if strings.Contains(string(metrics), "\netcd_server_is_leader 1\n") {
				leader = pod
				return nil
			}
		}
		return fmt.Errorf("no member says that it leads")
	})
	return leader
}
