package admission

import (
	"fmt"
	"strings"
	"testing"

	"github.com/trigate/trigate/deploy/test/framework"
)

// podWith is pod with more fields, as YAML flow, in its metadata and spec.
func podWith(name, metadata, spec string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s%s}, spec: {containers: [{name: main, image: example.com/image:1}]%s}}",
		name, prefixed(metadata), prefixed(spec))
}

func prefixed(fields string) string {
	if fields == "" {
		return ""
	}
	return ", " + fields
}

func TestPodsGetTheirServiceAccountAndItsToken(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, _ *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		pods := core(ns, "pods")

		created := admin.Send(t, "POST", pods, pod).Want(t, 201)
		if got := created.String(t, "spec", "serviceAccountName"); got != "default" {
			t.Errorf("got service account %q, want default", got)
		}
		volume := created.String(t, "spec", "volumes", 0, "name")
		if !strings.HasPrefix(volume, "kube-api-access-") {
			t.Errorf("got volume %q, want kube-api-access-…", volume)
		}
		if got := created.String(t, "spec", "containers", 0, "volumeMounts", 0, "name"); got != volume {
			t.Errorf("got a mount of %q, want %q", got, volume)
		}
		if got := created.String(t, "spec", "containers", 0, "volumeMounts", 0, "mountPath"); got != "/var/run/secrets/kubernetes.io/serviceaccount" {
			t.Errorf("got mount path %q", got)
		}

		admin.Send(t, "POST", pods, podWith("p2", "", "serviceAccountName: missing")).WantMessage(t, 403, fmt.Sprintf(
			`pods "p2" is forbidden: error looking up service account %s/missing: serviceaccount "missing" not found`, ns))

		without := admin.Send(t, "POST", pods, podWith("p3", "", "automountServiceAccountToken: false")).Want(t, 201)
		if got := without.Field(t, "spec", "volumes"); got != nil {
			t.Errorf("got volumes %v, want none", got)
		}

		// The service account may say so too, and brings its pull secrets.
		admin.Send(t, "POST", core(ns, "serviceaccounts"),
			"{apiVersion: v1, kind: ServiceAccount, metadata: {name: puller, annotations: {kubernetes.io/enforce-mountable-secrets: 'true'}}, imagePullSecrets: [{name: registry}], automountServiceAccountToken: false}").Want(t, 201)
		puller := admin.Send(t, "POST", pods, podWith("p4", "", "serviceAccountName: puller")).Want(t, 201)
		if got := puller.String(t, "spec", "imagePullSecrets", 0, "name"); got != "registry" {
			t.Errorf("got pull secret %q, want registry", got)
		}
		if got := puller.Field(t, "spec", "volumes"); got != nil {
			t.Errorf("got volumes %v, want none", got)
		}
		admin.Send(t, "POST", pods, podWith("p5", "", "serviceAccountName: puller, volumes: [{name: v, secret: {secretName: other}}]")).
			WantMessage(t, 403, `pods "p5" is forbidden: volume with secret.secretName="other" is not allowed because service account puller does not reference that secret`)

		// Mirror pods have none.
		admin.Send(t, "POST", pods, podWith("p6", "annotations: {kubernetes.io/config.mirror: x}", "serviceAccountName: default, nodeName: some")).
			WantMessage(t, 403, `pods "p6" is forbidden: a mirror pod may not reference service accounts`)
	})
}

func TestLimitRangerDefaultsAndLimits(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, _ *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		admin.Send(t, "POST", core(ns, "limitranges"), `
apiVersion: v1
kind: LimitRange
metadata: {name: limits}
spec:
  limits:
  - type: Container
    default: {cpu: 300m, memory: 200Mi}
    defaultRequest: {cpu: 100m}
    max: {cpu: 500m}
    min: {memory: 10Mi}
    maxLimitRequestRatio: {cpu: "4"}
  - type: Pod
    max: {memory: 300Mi}
  - type: PersistentVolumeClaim
    max: {storage: 2Gi}
    min: {storage: 1Gi}
`).Want(t, 201)
		pods := core(ns, "pods")
		created := admin.Send(t, "POST", pods, pod).Want(t, 201)
		for _, want := range []struct{ kind, resource, quantity string }{
			{"limits", "cpu", "300m"}, {"limits", "memory", "200Mi"}, {"requests", "cpu", "100m"}, {"requests", "memory", "200Mi"},
		} {
			if got := created.String(t, "spec", "containers", 0, "resources", want.kind, want.resource); got != want.quantity {
				t.Errorf("got %s of %s %q, want %q", want.kind, want.resource, got, want.quantity)
			}
		}
		if got := created.String(t, "metadata", "annotations", "kubernetes.io/limit-ranger"); got !=
			"LimitRanger plugin set: cpu, memory request for container main; cpu, memory limit for container main" {
			t.Errorf("got annotation %q", got)
		}
		resources := func(name, resources string) string {
			return "{apiVersion: v1, kind: Pod, metadata: {name: " + name + "}, spec: {containers: [{name: main, image: i, resources: " + resources + "}]}}"
		}
		admin.Send(t, "POST", pods, resources("p2", "{limits: {cpu: 2}}")).WantMessage(t, 403,
			`pods "p2" is forbidden: maximum cpu usage per Container is 500m, but limit is 2`)
		admin.Send(t, "POST", pods, resources("p3", "{limits: {cpu: 500m, memory: 1Gi}, requests: {cpu: 10m, memory: 1Mi}}")).WantMessage(t, 403,
			`pods "p3" is forbidden: [minimum memory usage per Container is 10Mi, but request is 1Mi, cpu max limit to request ratio per Container is 4, but provided ratio is 50.000000, maximum memory usage per Pod is 300Mi, but limit is 1Gi]`)
		admin.Send(t, "POST", core(ns, "persistentvolumeclaims"),
			"{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: big}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 3Gi}}}}").
			WantMessage(t, 403, `persistentvolumeclaims "big" is forbidden: maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi`)
	})
}

func TestPodsGetTolerations(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, _ *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		created := admin.Send(t, "POST", core(ns, "pods"), pod).Want(t, 201)
		for i, key := range []string{"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"} {
			got := fmt.Sprint(created.Field(t, "spec", "tolerations", i))
			if want := fmt.Sprintf("map[effect:NoExecute key:%s operator:Exists tolerationSeconds:300]", key); got != want {
				t.Errorf("got toleration %s, want %s", got, want)
			}
		}
		// The Pod's own stay.
		own := admin.Send(t, "POST", core(ns, "pods"),
			podWith("p2", "", "tolerations: [{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 5}]")).Want(t, 201)
		if got := fmt.Sprint(own.Field(t, "spec", "tolerations", 0, "tolerationSeconds")); got != "5" {
			t.Errorf("got toleration seconds %s, want 5", got)
		}
	})
}

func TestPodsGetTheirPriority(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		pods := core(ns, "pods")
		const classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
		admin.Send(t, "POST", classes,
			"{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: trigate-test-high}, value: 1234, preemptionPolicy: Never}").Want(t, 201)
		t.Cleanup(func() { c.Admin(t).Send(t, "DELETE", classes+"/trigate-test-high", "").Want(t, 200) })

		high := podWith("p1", "", "priorityClassName: trigate-test-high")
		c.Admin(t).Await(t, "POST", pods+"?dryRun=All", high, 201)
		created := admin.Send(t, "POST", pods, high).Want(t, 201)
		if got := fmt.Sprintf("%v %v", created.Field(t, "spec", "priority"), created.Field(t, "spec", "preemptionPolicy")); got != "1234 Never" {
			t.Errorf("got priority and preemption policy %s, want 1234 Never", got)
		}
		created = admin.Send(t, "POST", pods, podWith("p2", "", "priorityClassName: system-node-critical")).Want(t, 201)
		if got := fmt.Sprint(created.Field(t, "spec", "priority")); got != "2000001000" {
			t.Errorf("got priority %s, want 2000001000", got)
		}
		created = admin.Send(t, "POST", pods, podWith("p3", "", "")).Want(t, 201)
		if got := fmt.Sprint(created.Field(t, "spec", "priority")); got != "0" {
			t.Errorf("got priority %s, want 0", got)
		}
		admin.Send(t, "POST", pods, podWith("p4", "", "priorityClassName: missing")).
			WantMessage(t, 403, `pods "p4" is forbidden: no PriorityClass with name missing was found`)
		admin.Send(t, "POST", pods, podWith("p5", "", "priority: 7")).
			WantMessage(t, 403, `pods "p5" is forbidden: the integer value of priority (7) must not be provided in pod spec; priority admission controller computed 0 from the given PriorityClass name`)
		admin.Send(t, "POST", classes, "{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: system-mine}, value: 1}").Want(t, 422)
	})
}

// It changes what every Pod gets, so it runs alone.
func TestThereIsOneDefaultPriorityClass(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		const classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
		class := func(name string) string {
			return "{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: " + name + "}, value: 77, globalDefault: true}"
		}
		admin.Send(t, "POST", classes, class("trigate-test-default")).Want(t, 201)
		t.Cleanup(func() { c.Admin(t).Send(t, "DELETE", classes+"/trigate-test-default", "").Want(t, 200) })
		c.Admin(t).Await(t, "POST", classes+"?dryRun=All", class("trigate-test-second"), 403)
		admin.Send(t, "POST", classes, class("trigate-test-second")).WantMessage(t, 403,
			`priorityclasses.scheduling.k8s.io "trigate-test-second" is forbidden: PriorityClass trigate-test-default is already marked as default. Only one default can exist`)
		created := admin.Send(t, "POST", core(ns, "pods"), pod).Want(t, 201)
		if got := fmt.Sprintf("%v %v", created.Field(t, "spec", "priority"), created.Field(t, "spec", "priorityClassName")); got != "77 trigate-test-default" {
			t.Errorf("got priority and class %s, want 77 trigate-test-default", got)
		}
	})
}

func TestRuntimeClassesGiveOverheadAndNodes(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		pods := core(ns, "pods")
		const classes = "/apis/node.k8s.io/v1/runtimeclasses"
		admin.Send(t, "POST", classes, `
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: trigate-test}
handler: sandbox
overhead: {podFixed: {cpu: 10m, memory: 5Mi}}
scheduling: {nodeSelector: {sandbox: "yes"}, tolerations: [{key: sandbox, operator: Exists}]}
`).Want(t, 201)
		t.Cleanup(func() { c.Admin(t).Send(t, "DELETE", classes+"/trigate-test", "").Want(t, 200) })
		created := admin.Send(t, "POST", pods, podWith("p1", "", "runtimeClassName: trigate-test")).Want(t, 201)
		if got := fmt.Sprintf("%v %v", created.Field(t, "spec", "overhead"), created.Field(t, "spec", "nodeSelector")); got != "map[cpu:10m memory:5Mi] map[sandbox:yes]" {
			t.Errorf("got overhead and node selector %s", got)
		}
		admin.Send(t, "POST", pods, podWith("p2", "", "runtimeClassName: missing")).
			WantMessage(t, 403, `pods "p2" is forbidden: pod rejected: RuntimeClass "missing" not found`)
		admin.Send(t, "POST", pods, podWith("p3", "", "runtimeClassName: trigate-test, nodeSelector: {sandbox: 'no'}")).
			WantMessage(t, 403, `pods "p3" is forbidden: conflict: runtimeClass.scheduling.nodeSelector[sandbox] = yes; pod.spec.nodeSelector[sandbox] = no`)
		admin.Send(t, "POST", pods, podWith("p4", "", "overhead: {cpu: 1}")).
			WantMessage(t, 403, `pods "p4" is forbidden: pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead`)
	})
}

func TestResizesOfPodsAreChecked(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		admin.Send(t, "POST", "/api/v1/nodes", "{apiVersion: v1, kind: Node, metadata: {name: trigate-test-resize}}").Want(t, 201)
		t.Cleanup(func() { c.Admin(t).Send(t, "DELETE", "/api/v1/nodes/trigate-test-resize", "").Want(t, 200) })
		admin.Send(t, "POST", core(ns, "pods"),
			"{apiVersion: v1, kind: Pod, metadata: {name: p1}, spec: {nodeName: trigate-test-resize, containers: [{name: main, image: i, resources: {requests: {cpu: 1}}}]}}").Want(t, 201)
		admin.Send(t, "PATCH", core(ns, "pods/p1/resize"), `{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"1000"}}}]}}`,
			framework.StrategicPatch).Want(t, 403)
	})
}

func TestBoundPodsGetTheTopologyOfTheirNode(t *testing.T) {
	t.Parallel()
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		ns := c.Namespace(t)
		const node = "trigate-test-topology"
		c.Admin(t).Make(t, "/api/v1/nodes", node,
			"{apiVersion: v1, kind: Node, metadata: {name: "+node+", labels: {topology.kubernetes.io/zone: z1, topology.kubernetes.io/region: r1, other: x}}}")
		bind := func(name string) *framework.Answer {
			t.Helper()
			c.Admin(t).Send(t, "POST", core(ns, "pods"), podWith(name, "", "")).Want(t, 201)
			c.Admin(t).Send(t, "POST", core(ns, "pods/"+name+"/binding"),
				"{apiVersion: v1, kind: Binding, metadata: {name: "+name+"}, target: {kind: Node, name: "+node+"}}").Want(t, 201)
			return c.Admin(t).Send(t, "GET", core(ns, "pods/"+name), "").Want(t, 200)
		}
		// The plugin leaves a Pod alone if it has not yet heard of its node.
		const want = "map[topology.kubernetes.io/region:r1 topology.kubernetes.io/zone:z1]"
		tries := 0
		framework.Eventually(t, "labels "+want, func() error {
			tries++
			if got := fmt.Sprint(bind(fmt.Sprintf("p%d", tries)).Field(t, "metadata", "labels")); got != want {
				return fmt.Errorf("got labels %s", got)
			}
			return nil
		})
	})
}
