package node

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

// restore takes a snapshot of etcd, loses all of its data, and restores it, by the
// commands of deploy/docs/operations.md.
func (c *trigate) restore(t *testing.T) {
	inHost := func(args ...string) string {
		return c.host.MustKubectl(t, append([]string{"--namespace", namespace}, args...)...)
	}
	c.host.volume(t, "etcd-backup")
	c.host.MustKubectl(t, "apply", "-k", framework.Overlay(t, "ha", "etcd-backup"))
	c.MustKubectl(t, "create", "namespace", "restored")
	before := c.user(t, "restored", "before")
	inHost("create", "job", "snapshot", "--from=cronjob/trigate-etcd-backup")
	inHost("wait", "--for=condition=complete", "job/snapshot", "--timeout=2m")
	after := c.user(t, "restored", "after")
	if !c.may(t, before) || !c.may(t, after) {
		t.Fatal("a user may not what its role says")
	}

	inHost("scale", "statefulset/trigate-etcd", "--replicas=0")
	inHost("wait", "--for=delete", "pod", "--selector=app.kubernetes.io/component=etcd", "--timeout=2m")
	inHost("delete", "pvc", "data-trigate-etcd-0", "data-trigate-etcd-1", "data-trigate-etcd-2", "--timeout=2m")
	c.host.volumes(t)

	inHost("create", "configmap", "trigate-etcd-restore", "--from-literal=SNAPSHOT=snapshot")
	c.host.MustKubectl(t, "apply", "-k", framework.Manifests(t, "restore", "ha"))
	for i := range etcdMembers {
		inHost("wait", "--for=condition=complete", fmt.Sprintf("job/trigate-etcd-restore-%d", i), "--timeout=2m")
	}
	inHost("delete", "job", "--selector=batch.kubernetes.io/job-name", "--ignore-not-found")
	inHost("scale", "statefulset/trigate-etcd", "--replicas=3")
	c.host.rolledOut(t, "statefulset/trigate-etcd")
	c.waitReady(t, timeout)

	t.Run("what the snapshot has is there", func(t *testing.T) {
		if _, err := c.Client(t).CoreV1().ServiceAccounts("restored").Get(t.Context(), "before", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		framework.Eventually(t, "right of before the snapshot", func() error {
			if !c.may(t, before) {
				return fmt.Errorf("it is gone")
			}
			return nil
		})
	})
	t.Run("what came later is gone, and the services know", func(t *testing.T) {
		_, err := c.Client(t).RbacV1().RoleBindings("restored").Get(t.Context(), "after", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("RoleBinding of after the snapshot: %v, want it not to be there", err)
		}
		framework.Eventually(t, "end of a right that came after the snapshot", func() error {
			if c.may(t, after) {
				return fmt.Errorf("it is there still")
			}
			return nil
		})
	})
	t.Run("what comes now counts", func(t *testing.T) {
		user := c.user(t, "restored", "now")
		framework.Eventually(t, "right of after the restoration", func() error {
			if !c.may(t, user) {
				return fmt.Errorf("it is not there")
			}
			return nil
		})
	})
}

// user makes a service account that may list pods, and returns its full name. It is told
// by impersonation, since the account of a user that is lost has no token any more.
func (c *trigate) user(t *testing.T, namespace, name string) string {
	t.Helper()
	c.MustKubectl(t, "--namespace", namespace, "create", "serviceaccount", name)
	c.MustKubectl(t, "--namespace", namespace, "create", "role", name, "--verb=list", "--resource=pods")
	c.MustKubectl(t, "--namespace", namespace, "create", "rolebinding", name, "--role="+name, "--serviceaccount="+namespace+":"+name)
	return "system:serviceaccount:" + namespace + ":" + name
}

// may tells whether a user of namespace restored may list its pods.
func (c *trigate) may(t *testing.T, user string) bool {
	t.Helper()
	return strings.TrimSpace(c.Kubectl(t, "--namespace", "restored", "--as="+user, "auth", "can-i", "list", "pods").Stdout) == "yes"
}
