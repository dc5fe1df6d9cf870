package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

const (
	// namespace is where the manifests put everything.
	namespace = "trigate-system"
	// serverURL is where clients reach the gateways: the node port of the manifests.
	serverURL = "https://" + nodeAddress + ":30443"
	// etcdMembers is how many members the largest overlay has.
	etcdMembers = 3
	// timeout bounds what has no limit of its own.
	timeout = 5 * time.Minute
)

// trigate is Trigate as pods of the host.
type trigate struct {
	*framework.Cluster
	host *host
}

// install does what the README says: the PKI, and an overlay. It returns once the
// gateway says that it is ready, and fails if that takes longer than limit. At the end
// of the test all of it is removed.
func (h *host) install(t *testing.T, overlay string, limit time.Duration) *trigate {
	t.Helper()
	h.volumes(t)
	t.Cleanup(func() { h.uninstall(t) })
	installed := &trigate{
		Cluster: &framework.Cluster{Name: overlay, Dir: t.TempDir()},
		host:    h,
	}
	installed.Kubeconfig = filepath.Join(installed.Dir, "trigate.kubeconfig")

	begin := time.Now()
	h.pki(t, "init", "--server="+serverURL, "--output="+installed.Kubeconfig)
	h.MustKubectl(t, "apply", "-k", overlay)
	installed.waitReady(t, limit)
	t.Logf("%s: ready after %.1f s", filepath.Base(overlay), time.Since(begin).Seconds())
	h.settled(t)
	return installed
}

// waitReady waits until a gateway says that it is ready.
func (c *trigate) waitReady(t *testing.T, limit time.Duration) {
	t.Helper()
	client := c.Client(t)
	framework.EventuallyWithin(t, limit, "/readyz of the gateway", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err != nil {
			return fmt.Errorf("%w; pods:\n%s", err, c.host.pods(t))
		}
		return nil
	})
}

// pki runs trigate-pki on the Secrets of the host.
func (h *host) pki(t *testing.T, command string, args ...string) string {
	t.Helper()
	path, err := framework.Binary("trigate-pki")
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{command, "--kubeconfig=" + h.Kubeconfig, "--namespace=" + namespace}, args...)
	output, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("trigate-pki %s: %v\n%s", strings.Join(args, " "), err, output)
	}
	return string(output)
}

// pods lists the pods for a message.
func (h *host) pods(t *testing.T) string {
	t.Helper()
	return h.Kubectl(t, "--namespace", namespace, "get", "pods", "--output", "wide").Stdout
}

// settled waits until every Deployment and StatefulSet is as its spec says.
func (h *host) settled(t *testing.T) {
	t.Helper()
	for _, object := range strings.Fields(h.MustKubectl(t, "--namespace", namespace, "get", "deployments,statefulsets", "--output", "name")) {
		h.rolledOut(t, object)
	}
}

// rolledOut waits until one of them is as its spec says.
func (h *host) rolledOut(t *testing.T, object string) {
	t.Helper()
	framework.EventuallyWithin(t, timeout, "rollout of "+object, func() error {
		result := h.Kubectl(t, "--namespace", namespace, "rollout", "status", "--timeout=60s", object)
		if result.Code != 0 {
			return fmt.Errorf("%s%s\n%s", result.Stdout, result.Stderr, h.pods(t))
		}
		return nil
	})
}

// volumes makes a volume for each member of etcd, since nothing on the host does. They
// begin empty.
func (h *host) volumes(t *testing.T) {
	t.Helper()
	for i := range etcdMembers {
		h.volume(t, fmt.Sprintf("etcd-%d", i))
	}
}

func (h *host) volume(t *testing.T, name string) {
	t.Helper()
	path := filepath.Join(h.dir, name)
	if err := errors.Join(os.RemoveAll(path), os.MkdirAll(path, 0o755)); err != nil {
		t.Fatal(err)
	}
	err := h.client.CoreV1().PersistentVolumes().Delete(t.Context(), name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{nodeName},
				}},
			}}}},
		},
	}
	framework.Eventually(t, "volume "+name, func() error {
		_, err := h.client.CoreV1().PersistentVolumes().Create(t.Context(), volume, metav1.CreateOptions{})
		return err // it may still be going away
	})
}

// uninstall removes Trigate and its data.
func (h *host) uninstall(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if t.Failed() {
		t.Logf("pods:\n%s\n%s", h.pods(t), h.Kubectl(t, "--namespace", namespace, "get", "events", "--sort-by=.lastTimestamp").Stdout)
		for _, pod := range strings.Fields(h.Kubectl(t, "--namespace", namespace, "get", "pods", "--output", "name").Stdout) {
			t.Logf("%s:\n%s", pod, h.Kubectl(t, "--namespace", namespace, "logs", "--tail=15", pod).Stdout)
		}
	}
	// Gateways end sooner while they have what they need.
	h.Kubectl(t, "--namespace", namespace, "delete", "deployment", "trigate-gateway", "--cascade=foreground", "--timeout=100s")
	err := h.client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	framework.EventuallyWithin(t, timeout, "end of "+namespace, func() error {
		_, err := h.client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w\n%s", err, h.pods(t))
	})
	if err := h.client.CoreV1().PersistentVolumes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
}
