package admission

import (
	"errors"
	"fmt"
	"testing"

	"github.com/trigate/trigate/deploy/test/framework"
)

const claim = "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: claim}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}"

// It changes what every claim gets, so it runs alone.
func TestClaimsGetTheDefaultStorageClass(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		const classes = "/apis/storage.k8s.io/v1/storageclasses"
		admin.Send(t, "POST", classes,
			"{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: trigate-test, annotations: {storageclass.kubernetes.io/is-default-class: 'true'}}, provisioner: example.com/none, volumeBindingMode: WaitForFirstConsumer}").Want(t, 201)
		t.Cleanup(func() { c.Admin(t).Send(t, "DELETE", classes+"/trigate-test", "").Want(t, 200) })
		claims := core(ns, "persistentvolumeclaims")
		framework.Eventually(t, "default storage class", func() error {
			answer, err := c.Admin(t).TrySend("POST", claims+"?dryRun=All", claim)
			if err == nil && answer.String(t, "spec", "storageClassName") == "" {
				err = errors.New("it is not set yet")
			}
			return err
		})
		created := admin.Send(t, "POST", claims, claim).Want(t, 201)
		if got := created.String(t, "spec", "storageClassName"); got != "trigate-test" {
			t.Errorf("got storage class %q, want trigate-test", got)
		}
		if got := fmt.Sprint(created.Field(t, "metadata", "finalizers")); got != "[kubernetes.io/pvc-protection]" {
			t.Errorf("got finalizers %s, want [kubernetes.io/pvc-protection]", got)
		}
		// An empty class is a class.
		created = admin.Send(t, "POST", claims,
			"{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: none}, spec: {storageClassName: '', accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}").Want(t, 201)
		if got := created.Field(t, "spec", "storageClassName"); got != "" {
			t.Errorf("got storage class %v, want an empty one", got)
		}
	})
}

func TestVolumesInUseAreProtected(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		const volumes = "/api/v1/persistentvolumes"
		created := admin.Send(t, "POST", volumes,
			"{apiVersion: v1, kind: PersistentVolume, metadata: {name: trigate-test}, spec: {storageClassName: none, accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, hostPath: {path: /tmp}}}").Want(t, 201)
		t.Cleanup(func() { c.Admin(t).Send(t, "DELETE", volumes+"/trigate-test", "").Want(t, 200) })
		if got := fmt.Sprint(created.Field(t, "metadata", "finalizers")); got != "[kubernetes.io/pv-protection]" {
			t.Errorf("got finalizers %s, want [kubernetes.io/pv-protection]", got)
		}
	})
}

func TestOnlyClaimsOfExpandableClassesGrow(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		const volumes = "/api/v1/persistentvolumes"
		c.Admin(t).Send(t, "POST", volumes,
			"{apiVersion: v1, kind: PersistentVolume, metadata: {name: trigate-bound}, spec: {storageClassName: none, accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, hostPath: {path: /tmp}, claimRef: {namespace: "+ns+", name: claim}}}").Want(t, 201)
		t.Cleanup(func() { c.Admin(t).Send(t, "DELETE", volumes+"/trigate-bound", "").Want(t, 200) })
		claims := core(ns, "persistentvolumeclaims")
		c.Admin(t).Send(t, "POST", claims,
			"{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: claim}, spec: {storageClassName: none, volumeName: trigate-bound, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}").Want(t, 201)
		framework.Eventually(t, "bound claim", func() error {
			if got := c.Admin(t).Send(t, "GET", claims+"/claim", "").String(t, "status", "phase"); got != "Bound" {
				return fmt.Errorf("it is %s", got)
			}
			return nil
		})
		admin.Send(t, "PATCH", claims+"/claim", `{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`, framework.MergePatch).
			WantMessage(t, 403, `persistentvolumeclaims "claim" is forbidden: only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize`)
	})
}

// It changes what every Ingress gets, so it runs alone.
func TestIngressesGetTheDefaultClass(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		const classes = "/apis/networking.k8s.io/v1/ingressclasses"
		admin.Send(t, "POST", classes,
			"{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: trigate-test, annotations: {ingressclass.kubernetes.io/is-default-class: 'true'}}, spec: {controller: example.com/none}}").Want(t, 201)
		t.Cleanup(func() { c.Admin(t).Send(t, "DELETE", classes+"/trigate-test", "").Want(t, 200) })
		ingresses := group("networking.k8s.io/v1", ns, "ingresses")
		const ingress = "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: i1}, spec: {defaultBackend: {service: {name: s, port: {number: 80}}}}}"
		framework.Eventually(t, "default ingress class", func() error {
			answer, err := c.Admin(t).TrySend("POST", ingresses+"?dryRun=All", ingress)
			if err == nil && answer.String(t, "spec", "ingressClassName") == "" {
				err = errors.New("it is not set yet")
			}
			return err
		})
		created := admin.Send(t, "POST", ingresses, ingress).Want(t, 201)
		if got := created.String(t, "spec", "ingressClassName"); got != "trigate-test" {
			t.Errorf("got ingress class %q, want trigate-test", got)
		}
	})
}
