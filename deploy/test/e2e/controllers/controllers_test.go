// Package controllers tests that the stock kube-controller-manager does its work.
package controllers

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/trigate/trigate/deploy/pki"
	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

func TestDeploymentMakesReplicaSetMakesPods(t *testing.T) {
	t.Parallel()
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		ctx := t.Context()
		client, namespace := c.Client(t), c.Namespace(t)
		deployment, err := client.AppsV1().Deployments(namespace).Create(ctx, webDeployment(2), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		first := awaitReplicaSet(t, client, deployment, "web:1", 2)
		awaitPods(t, client, first, 2)
		framework.Eventually(t, "deployment status", func() error {
			d, err := client.AppsV1().Deployments(namespace).Get(ctx, "web", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if d.Status.ObservedGeneration != d.Generation || d.Status.Replicas != 2 || d.Status.UpdatedReplicas != 2 {
				return fmt.Errorf("status of generation %d is %+v", d.Generation, d.Status)
			}
			return nil
		})

		t.Log("another image makes another ReplicaSet")
		patch := []byte(`[{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "web:2"}]`)
		if _, err := client.AppsV1().Deployments(namespace).Patch(ctx, "web", types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		// No Pod ever gets ready without a kubelet, so that the old ones stay.
		second := awaitReplicaSet(t, client, deployment, "web:2", 1)
		awaitPods(t, client, second, 1)

		t.Log("the garbage collector takes what a deleted Deployment leaves")
		if err := client.AppsV1().Deployments(namespace).Delete(ctx, "web", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}); err != nil {
			t.Fatal(err)
		}
		framework.Eventually(t, "ReplicaSets and Pods gone", func() error {
			sets, err := client.AppsV1().ReplicaSets(namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			if len(sets.Items)+len(pods.Items) > 0 {
				return fmt.Errorf("%d ReplicaSets and %d Pods are left", len(sets.Items), len(pods.Items))
			}
			return nil
		})
	})
}

func TestJobMakesPods(t *testing.T) {
	t.Parallel()
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		client, namespace := c.Client(t), c.Namespace(t)
		job, err := client.BatchV1().Jobs(namespace).Create(t.Context(), &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Name: "sum"},
			Spec: batchv1.JobSpec{
				Parallelism: ptr.To[int32](2),
				Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
					Containers:    []corev1.Container{{Name: "sum", Image: "sum:1"}},
					RestartPolicy: corev1.RestartPolicyNever,
				}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		framework.Eventually(t, "two Pods of the Job", func() error {
			got, err := client.BatchV1().Jobs(namespace).Get(t.Context(), job.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if got.Status.Active != 2 {
				return fmt.Errorf("status = %+v, want 2 active", got.Status)
			}
			return nil
		})
	})
}

func TestNamespaceIsEmptiedAndDeleted(t *testing.T) {
	t.Parallel()
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		ctx := t.Context()
		client, namespace := c.Client(t), c.Namespace(t)
		// What holds up the namespace's end until the test lets it go.
		held, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"trigate.test/hold"}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().Secrets(namespace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		deployment, err := client.AppsV1().Deployments(namespace).Create(ctx, webDeployment(1), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		awaitPods(t, client, awaitReplicaSet(t, client, deployment, "web:1", 1), 1)

		if err := client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		framework.Eventually(t, "the condition that says what is left", func() error {
			ns, err := client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if ns.Status.Phase != corev1.NamespaceTerminating {
				return fmt.Errorf("phase = %q, want %q", ns.Status.Phase, corev1.NamespaceTerminating)
			}
			const want = "Some content in the namespace has finalizers remaining: trigate.test/hold in 1 resource instances"
			for _, condition := range ns.Status.Conditions {
				if condition.Type == corev1.NamespaceFinalizersRemaining && condition.Message == want {
					return nil
				}
			}
			return fmt.Errorf("conditions = %+v", ns.Status.Conditions)
		})
		if _, err := client.CoreV1().Secrets(namespace).Get(ctx, "secret", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("getting a Secret of the emptied namespace: got %v, want NotFound", err)
		}

		patch := []byte(`{"metadata": {"finalizers": null}}`)
		if _, err := client.CoreV1().ConfigMaps(namespace).Patch(ctx, held.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		framework.Eventually(t, "namespace gone", func() error {
			_, err := client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				return fmt.Errorf("getting it: got %v, want NotFound", err)
			}
			return nil
		})
		for _, resource := range []string{"configmaps", "secrets", "serviceaccounts", "pods", "replicasets.apps", "deployments.apps"} {
			if left := c.MustKubectl(t, "get", resource, "--namespace", namespace, "--output", "name"); left != "" {
				t.Errorf("the deleted namespace still has %s", left)
			}
		}
	})
}

func TestEveryNamespaceHasServiceAccountAndRootCertificate(t *testing.T) {
	t.Parallel()
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		ctx := t.Context()
		client := c.Client(t)
		authority, err := os.ReadFile(c.PKI.Cert(pki.ClusterCA))
		if err != nil {
			t.Fatal(err)
		}
		own := c.Namespace(t)
		for _, namespace := range []string{"default", "kube-system", "kube-public", "kube-node-lease", own} {
			awaitContents(t, client, namespace, string(authority))
		}

		t.Log("both come back if they are deleted")
		if err := client.CoreV1().ServiceAccounts(own).Delete(ctx, "default", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := client.CoreV1().ConfigMaps(own).Delete(ctx, rootCertificate, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		awaitContents(t, client, own, string(authority))
	})
}

// TestReadyControlPlaneIsComplete starts control planes of its own: what a new one
// has by itself has to be there when it says that it is ready, not a minute later.
func TestReadyControlPlaneIsComplete(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, c *framework.Cluster) {
		client := c.Client(t)
		for _, namespace := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
			if _, err := client.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{}); err != nil {
				t.Errorf("namespace %s: %v", namespace, err)
			}
		}
		if _, err := client.RbacV1().ClusterRoleBindings().Get(t.Context(), "cluster-admin", metav1.GetOptions{}); err != nil {
			t.Errorf("cluster role binding: %v", err)
		}
		if _, err := client.SchedulingV1().PriorityClasses().Get(t.Context(), "system-node-critical", metav1.GetOptions{}); err != nil {
			t.Errorf("priority class: %v", err)
		}
		// Stock kube-apiserver makes this Service right after it is ready.
		framework.EventuallyWithin(t, 10*time.Second, "the Service kubernetes", func() error {
			_, err := client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
			return err
		})
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: podSpec("web:1")}
		framework.EventuallyWithin(t, 10*time.Second, "a Pod, which needs the default service account", func() error {
			_, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		})
	}
	t.Run(framework.Stock, func(t *testing.T) { check(t, framework.StartStock(t, framework.StockOptions{})) })
	t.Run(framework.Trigate, func(t *testing.T) { check(t, framework.StartTrigate(t, framework.TrigateOptions{})) })
}

func TestQuotaStatusIsFilled(t *testing.T) {
	t.Parallel()
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		ctx := t.Context()
		client, namespace := c.Client(t), c.Namespace(t)
		awaitConfigMap(t, client, namespace)
		hard := corev1.ResourceList{
			corev1.ResourceConfigMaps:  resource.MustParse("5"),
			corev1.ResourcePods:        resource.MustParse("4"),
			corev1.ResourceRequestsCPU: resource.MustParse("2"),
			corev1.ResourceServices:    resource.MustParse("3"),
			"count/deployments.apps":   resource.MustParse("1"),
			"requests.example.org/x":   resource.MustParse("8"),
		}
		if _, err := client.CoreV1().ResourceQuotas(namespace).Create(ctx, &corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Name: "quota"}, Spec: corev1.ResourceQuotaSpec{Hard: hard},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		awaitQuota(t, client, namespace, hard, map[corev1.ResourceName]string{
			"configmaps": "1", "pods": "0", "requests.cpu": "0", "services": "0", "count/deployments.apps": "0", "requests.example.org/x": "0",
		})

		t.Log("what is made counts at once")
		for i := range 2 {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i)}, Spec: podSpec("web:1")}
			pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m")}
			if _, err := client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		awaitQuota(t, client, namespace, hard, map[corev1.ResourceName]string{
			"configmaps": "1", "pods": "2", "requests.cpu": "500m", "services": "0", "count/deployments.apps": "0", "requests.example.org/x": "0",
		})

		t.Log("what is deleted is counted no longer")
		if err := client.CoreV1().Pods(namespace).Delete(ctx, "pod-0", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		awaitQuota(t, client, namespace, hard, map[corev1.ResourceName]string{
			"configmaps": "1", "pods": "1", "requests.cpu": "250m", "services": "0", "count/deployments.apps": "0", "requests.example.org/x": "0",
		})
	})
}

func TestServiceGetsEndpointSlice(t *testing.T) {
	t.Parallel()
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		client, namespace := c.Client(t), c.Namespace(t)
		if _, err := client.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		framework.Eventually(t, "EndpointSlice of the Service", func() error {
			slices, err := client.DiscoveryV1().EndpointSlices(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
			if err != nil {
				return err
			}
			if len(slices.Items) != 1 {
				return fmt.Errorf("there are %d, want 1", len(slices.Items))
			}
			return nil
		})
	})
}

// TestControllersWorkAsTheirServiceAccounts proves that each controller works as a service
// account of its own, with a token that the cluster issued to it.
func TestControllersWorkAsTheirServiceAccounts(t *testing.T) {
	t.Parallel()
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		client, namespace := c.Client(t), c.Namespace(t)
		deployment, err := client.AppsV1().Deployments(namespace).Create(t.Context(), webDeployment(1), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		set := awaitReplicaSet(t, client, deployment, "web:1", 1)
		awaitPods(t, client, set, 1)
		for resource, want := range map[string]string{
			"replicasets": "system:serviceaccount:kube-system:deployment-controller",
			"pods":        "system:serviceaccount:kube-system:replicaset-controller",
		} {
			framework.Eventually(t, "audit event of a controller's create", func() error {
				events := c.AuditEvents(t, createIn(namespace, resource))
				if len(events) == 0 {
					return fmt.Errorf("no %s were created in %s", resource, namespace)
				}
				if got := events[0].User.Username; got != want {
					t.Errorf("%s were created by %s, want %s", resource, got, want)
				}
				return nil
			})
		}
	})
}

const rootCertificate = "kube-root-ca.crt"

// awaitContents waits for what every namespace has. The namespace itself has to be
// there.
func awaitContents(t *testing.T, client kubernetes.Interface, namespace, authority string) {
	t.Helper()
	if _, err := client.CoreV1().Namespaces().Get(context.Background(), namespace, metav1.GetOptions{}); err != nil {
		t.Errorf("namespace %s: %v", namespace, err)
		return
	}
	framework.Eventually(t, "default service account in "+namespace, func() error {
		_, err := client.CoreV1().ServiceAccounts(namespace).Get(context.Background(), "default", metav1.GetOptions{})
		return err
	})
	got := awaitConfigMap(t, client, namespace)
	if diff := cmp.Diff(map[string]string{"ca.crt": authority}, got.Data); diff != "" {
		t.Errorf("%s in %s (-want +got):\n%s", rootCertificate, namespace, diff)
	}
}

func awaitConfigMap(t *testing.T, client kubernetes.Interface, namespace string) *corev1.ConfigMap {
	t.Helper()
	var found *corev1.ConfigMap
	framework.Eventually(t, rootCertificate+" in "+namespace, func() (err error) {
		found, err = client.CoreV1().ConfigMaps(namespace).Get(context.Background(), rootCertificate, metav1.GetOptions{})
		return err
	})
	return found
}

func awaitQuota(t *testing.T, client kubernetes.Interface, namespace string, hard corev1.ResourceList, used map[corev1.ResourceName]string) {
	t.Helper()
	framework.Eventually(t, "quota status", func() error {
		quota, err := client.CoreV1().ResourceQuotas(namespace).Get(context.Background(), "quota", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if diff := cmp.Diff(hard, quota.Status.Hard); diff != "" {
			return fmt.Errorf("status.hard (-want +got):\n%s", diff)
		}
		got := map[corev1.ResourceName]string{}
		for name, quantity := range quota.Status.Used {
			got[name] = quantity.String()
		}
		if diff := cmp.Diff(used, got); diff != "" {
			return fmt.Errorf("status.used (-want +got):\n%s", diff)
		}
		return nil
	})
}

// awaitReplicaSet waits for the ReplicaSet that a Deployment made for an image, with
// so many Pods.
func awaitReplicaSet(t *testing.T, client kubernetes.Interface, owner *appsv1.Deployment, image string, replicas int32) *appsv1.ReplicaSet {
	t.Helper()
	var found *appsv1.ReplicaSet
	framework.Eventually(t, "ReplicaSet of "+image, func() error {
		sets, err := client.AppsV1().ReplicaSets(owner.Namespace).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, set := range sets.Items {
			if !metav1.IsControlledBy(&set, owner) || set.Spec.Template.Spec.Containers[0].Image != image {
				continue
			}
			if set.Status.Replicas != replicas {
				return fmt.Errorf("it has %d replicas, want %d", set.Status.Replicas, replicas)
			}
			found = &set
			return nil
		}
		return fmt.Errorf("none of %d ReplicaSets is it", len(sets.Items))
	})
	return found
}

// awaitPods waits for the Pods of a ReplicaSet and wants them to be as admission
// makes them.
func awaitPods(t *testing.T, client kubernetes.Interface, owner *appsv1.ReplicaSet, count int) {
	t.Helper()
	framework.Eventually(t, "Pods of "+owner.Name, func() error {
		pods, err := client.CoreV1().Pods(owner.Namespace).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		found := 0
		for _, pod := range pods.Items {
			if !metav1.IsControlledBy(&pod, owner) {
				continue
			}
			found++
			if pod.Spec.ServiceAccountName != "default" || len(pod.Spec.Volumes) != 1 {
				t.Errorf("Pod %s has service account %q and %d volumes, want the default one with its token volume",
					pod.Name, pod.Spec.ServiceAccountName, len(pod.Spec.Volumes))
			}
		}
		if found != count {
			return fmt.Errorf("there are %d, want %d", found, count)
		}
		return nil
	})
}

func webDeployment(replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": "web"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec("web:1")},
		},
	}
}

func podSpec(image string) corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: image}}}
}

// createIn keeps the audit events of what was created in a namespace.
func createIn(namespace, resource string) func(*auditv1.Event) bool {
	return func(event *auditv1.Event) bool {
		ref := event.ObjectRef
		return event.Verb == "create" && ref != nil && ref.Namespace == namespace && ref.Resource == resource && ref.Subresource == ""
	}
}
