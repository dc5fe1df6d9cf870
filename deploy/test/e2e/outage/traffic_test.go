package outage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	corev1 "k8s.io/api/core/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

// enoughWrites is how many writes are acknowledged before the next thing happens.
const enoughWrites = 50

// strict is a namespace that lets no Secret in, by quota, and no privileged Pod, by
// PodSecurity.
const strict = "strict"

// traffic is several people who read and write all the time by client-go, which
// tries again as it does by default. Each goroutine sends one request after the
// other until stop.
type traffic struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu sync.Mutex // guards the fields below
	// created are the names of the ConfigMaps whose creation was acknowledged.
	created []string
	// counted is the highest count whose update was acknowledged.
	counted int
	// breaches are what should have been refused and was not.
	breaches []string
	// errs are the requests that failed for good.
	errs []error
	// pauses is how many answers told the client to try again.
	pauses int
}

// startTraffic starts those who may, who may not, and who want what admission
// refuses.
func startTraffic(t *testing.T, c *framework.Cluster, who *people) *traffic {
	t.Helper()
	settleStrict(t, c)
	ctx, cancel := context.WithCancel(context.Background())
	tr := &traffic{cancel: cancel}
	client := func(config *rest.Config) kubernetes.Interface {
		config = rest.CopyConfig(config)
		config.Wrap(tr.countPauses)
		return framework.ClientFor(t, config)
	}
	ann, robot, nobody, admin := client(who.ann), client(who.robot), client(who.nobody), client(who.admin)
	tr.run(ctx, func(n int) { tr.create(ctx, ann, fmt.Sprintf("anns-%d", n)) })
	tr.run(ctx, func(n int) { tr.create(ctx, robot, fmt.Sprintf("robots-%d", n)) })
	tr.run(ctx, func(n int) { tr.count(ctx, ann, n) })
	tr.run(ctx, func(int) { tr.read(ctx, robot) })
	tr.run(ctx, func(n int) { tr.intrude(ctx, nobody, n) })
	tr.run(ctx, func(n int) { tr.violate(ctx, admin, n) })
	return tr
}

// settleStrict makes the strict namespace.
func settleStrict(t *testing.T, c *framework.Cluster) {
	t.Helper()
	ctx, core := t.Context(), c.Client(t).CoreV1()
	_, errNamespace := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: strict, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}, metav1.CreateOptions{})
	// kube-controller-manager may be faster, if there is one.
	_, errAccount := core.ServiceAccounts(strict).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(errAccount) {
		errAccount = nil
	}
	none := corev1.ResourceList{corev1.ResourceSecrets: resource.MustParse("0")}
	quota, errQuota := core.ResourceQuotas(strict).Create(ctx, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "no-secrets"},
		Spec:       corev1.ResourceQuotaSpec{Hard: none},
	}, metav1.CreateOptions{})
	if err := errors.Join(errNamespace, errAccount, errQuota); err != nil {
		t.Fatal(err)
	}
	// What its controller does, if there is one.
	quota.Status = corev1.ResourceQuotaStatus{Hard: none, Used: none}
	if _, err := core.ResourceQuotas(strict).UpdateStatus(ctx, quota, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
		t.Fatal(err)
	}
	// admission knows the quota as soon as it has seen it.
	framework.Eventually(t, "the quota", func() error {
		_, err := core.Secrets(strict).Create(ctx, secret("first"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsForbidden(err) {
			return fmt.Errorf("a Secret over the quota = %v, want it forbidden", err)
		}
		return nil
	})
}

func secret(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func privilegedPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "example.com/image:1",
			SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)},
		}}},
	}
}

func (tr *traffic) run(ctx context.Context, once func(n int)) {
	tr.done.Go(func() {
		for n := 1; ctx.Err() == nil; n++ {
			once(n)
		}
	})
}

// record takes the outcome of a request, unless it was interrupted.
func (tr *traffic) record(ctx context.Context, what string, err error, good func()) {
	if ctx.Err() != nil {
		return
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if err != nil {
		tr.errs = append(tr.errs, fmt.Errorf("%s: %w", what, err))
		return
	}
	good()
}

func (tr *traffic) create(ctx context.Context, client kubernetes.Interface, name string) {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, object, metav1.CreateOptions{})
	tr.record(ctx, "creating "+name, err, func() { tr.created = append(tr.created, name) })
}

// count writes n into an object, which it creates first.
func (tr *traffic) count(ctx context.Context, client kubernetes.Interface, n int) {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "count"}, Data: map[string]string{"datum": strconv.Itoa(n)}}
	var err error
	if n == 1 {
		_, err = client.CoreV1().ConfigMaps(namespace).Create(ctx, object, metav1.CreateOptions{})
	} else {
		_, err = client.CoreV1().ConfigMaps(namespace).Update(ctx, object, metav1.UpdateOptions{})
	}
	tr.record(ctx, "counting", err, func() { tr.counted = n })
}

func (tr *traffic) read(ctx context.Context, client kubernetes.Interface) {
	_, err := client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	tr.record(ctx, "listing", err, func() {})
}

// intrude tries what there is no right to.
func (tr *traffic) intrude(ctx context.Context, client kubernetes.Interface, n int) {
	if n%2 == 0 {
		_, err := client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{})
		tr.refused(ctx, "listing Secrets", err)
		return
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("intruders-%d", n)}}
	_, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, object, metav1.CreateOptions{})
	tr.refused(ctx, "creating "+object.Name, err)
}

// violate tries what admission does not let in.
func (tr *traffic) violate(ctx context.Context, client kubernetes.Interface, n int) {
	name := fmt.Sprintf("violators-%d", n)
	if n%2 == 0 {
		_, err := client.CoreV1().Secrets(strict).Create(ctx, secret(name), metav1.CreateOptions{})
		tr.refused(ctx, "creating the Secret "+name, err)
		return
	}
	_, err := client.CoreV1().Pods(strict).Create(ctx, privilegedPod(name), metav1.CreateOptions{})
	tr.refused(ctx, "creating the Pod "+name, err)
}

// refused takes the outcome of a request that has to be forbidden.
func (tr *traffic) refused(ctx context.Context, what string, err error) {
	if err == nil {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		tr.breaches = append(tr.breaches, what)
		return
	}
	if !apierrors.IsForbidden(err) {
		tr.record(ctx, what, err, nil)
	}
}

// countPauses counts answers that client-go does not show: those on which it tries
// again.
func (tr *traffic) countPauses(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if err == nil && resp.StatusCode == http.StatusServiceUnavailable {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			tr.pauses++
		}
		return resp, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (r roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }

func (tr *traffic) acknowledged() int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return len(tr.created) + tr.counted
}

// goesOn waits until more writes were acknowledged.
func (tr *traffic) goesOn(t *testing.T) {
	t.Helper()
	before := tr.acknowledged()
	framework.Eventually(t, "writes go on", func() error {
		if n := tr.acknowledged() - before; n < enoughWrites {
			return fmt.Errorf("only %d were acknowledged", n)
		}
		return nil
	})
}

// stop ends the traffic. No acknowledged write may be lost, nothing have been let
// pass that should not, and no request have failed for good.
func (tr *traffic) stop(t *testing.T, c *framework.Cluster) {
	t.Helper()
	tr.cancel()
	tr.done.Wait()
	ctx, core := context.Background(), c.Client(t).CoreV1()
	list, err := core.ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stored := map[string]*corev1.ConfigMap{}
	for i := range list.Items {
		stored[list.Items[i].Name] = &list.Items[i]
	}
	for _, name := range tr.created {
		if stored[name] == nil {
			t.Errorf("the creation of %s was acknowledged and is lost", name)
		}
	}
	// One more may have been written without having been acknowledged.
	if count, err := strconv.Atoi(stored["count"].Data["datum"]); err != nil || count < tr.counted || count > tr.counted+1 {
		t.Errorf("the count is %d (%v), want %d or one more", count, err, tr.counted)
	}
	for _, breach := range tr.breaches {
		t.Errorf("%s was not refused", breach)
	}
	secrets, errSecrets := core.Secrets(strict).List(ctx, metav1.ListOptions{})
	pods, errPods := core.Pods(strict).List(ctx, metav1.ListOptions{})
	if err := errors.Join(errSecrets, errPods); err != nil {
		t.Fatal(err)
	}
	if n := len(secrets.Items) + len(pods.Items); n > 0 {
		t.Errorf("%d objects are there that should have been refused", n)
	}
	for _, err := range tr.errs {
		t.Error(err)
	}
	t.Logf("%d creations and %d updates were acknowledged; clients were told %d times to try again", len(tr.created), tr.counted, tr.pauses)
}

// TestKilledGates kills each gate under traffic. The local runner starts it again,
// which takes less time than client-go tries.
func TestKilledGates(t *testing.T) {
	c := framework.StartTrigate(t, framework.TrigateOptions{})
	who := settle(t, c)
	tr := startTraffic(t, c, who)
	for _, gate := range []string{authn, authz, admission} {
		tr.goesOn(t)
		c.Signal(t, gate, syscall.SIGKILL)
		tr.goesOn(t)
		framework.Eventually(t, gate+" is back", func() error {
			_, err := c.Probe(t, "/readyz")
			return err
		})
	}
	tr.goesOn(t)
	tr.stop(t, c)
	if tr.pauses == 0 {
		t.Error("no client was told to try again: no gate was missed")
	}
}

// TestKilledReplicas kills one of two replicas of each gate, which stays away. No
// request fails, not even once.
func TestKilledReplicas(t *testing.T) {
	p := framework.NewParts(t, framework.PartsOptions{Replicas: 2})
	p.Start(t, p.Names()...)
	p.AwaitReady(t)
	tr := startTraffic(t, p.Cluster, settle(t, p.Cluster))
	for _, gate := range []string{authn, authz, admission} {
		tr.goesOn(t)
		p.Kill(t, gate)
		tr.goesOn(t)
		if report, err := p.Probe(t, "/readyz?verbose"); err != nil {
			t.Errorf("/readyz with one replica of %s = %v, want ok:\n%s", gate, err, report)
		}
	}
	tr.stop(t, p.Cluster)
	if tr.pauses > 0 {
		t.Errorf("%d requests were told to try again, want none", tr.pauses)
	}
}
