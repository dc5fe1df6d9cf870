package interest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/ptr"

	"github.com/trigate/trigate/services/admission/admissiontest"
	admissionclient "github.com/trigate/trigate/services/admission/client"
)

// testTimeout is only reached when something hangs.
const testTimeout = 30 * time.Second

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline, tick := time.After(testTimeout), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not within %s", what, testTimeout)
		}
	}
}

// cuttable is the real service, of which the test can cut the stream, and only that, or
// put another one in its place.
type cuttable struct {
	mu     sync.Mutex
	client *admissionclient.Client
	cut    context.CancelFunc
	closed bool
}

func (c *cuttable) WatchInterest(ctx context.Context, handle func(admissionclient.InterestUpdate)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.mu.Lock()
	client, closed := c.client, c.closed
	c.cut = cancel
	c.mu.Unlock()
	if closed {
		return errors.New("no stream may be open")
	}
	return client.WatchInterest(ctx, handle)
}

// set changes which service is listened to, and cuts the stream.
func (c *cuttable) set(client *admissionclient.Client, closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.client, c.closed = client, closed
	c.cut()
}

// follow returns a tracker that listens to a service until the test ends.
func follow(t *testing.T, client *admissionclient.Client, change ...func(*Tracker)) (*Tracker, *cuttable) {
	t.Helper()
	service := &cuttable{client: client}
	tracker := New(service, startNamespaces(t, kubefake.NewClientset()))
	for _, change := range change {
		change(tracker)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { // The cleanup waits for it.
		defer close(done)
		tracker.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	eventually(t, "the stream is there", tracker.live)
	return tracker, service
}

// request is a request for an object of a kind of the core group.
func request(operation admission.Operation, resource, namespace string) admission.Attributes {
	return requestBy(&user.DefaultInfo{Name: "ann"}, operation, schema.GroupVersionResource{Version: "v1", Resource: resource}, "", namespace)
}

func requestBy(who user.Info, operation admission.Operation, resource schema.GroupVersionResource, subresource, namespace string) admission.Attributes {
	return admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{}, namespace, "a", resource, subresource, operation, nil, false, who)
}

// objects are the interfaces of a server that has events in two groups.
func objects() admission.ObjectInterfaces {
	same := runtime.NewEquivalentResourceRegistryWithIdentity(func(resource schema.GroupResource) string {
		if resource.Resource == "events" {
			return "events"
		}
		return resource.String()
	})
	for _, group := range []string{"", "events.k8s.io"} {
		gv := schema.GroupVersion{Group: group, Version: "v1"}
		same.RegisterKindFor(gv.WithResource("events"), "", gv.WithKind("Event"))
	}
	return &withMapper{ObjectInterfaces: admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme), mapper: same}
}

type withMapper struct {
	admission.ObjectInterfaces
	mapper runtime.EquivalentResourceMapper
}

func (w *withMapper) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper { return w.mapper }

// verdicts are those on a request in both phases.
func (t *Tracker) verdicts(a admission.Attributes) [2]string {
	o := objects()
	return [2]string{reasonNames[t.judge(Mutating, a, o)], reasonNames[t.judge(Validating, a, o)]}
}

var (
	nobodys  = [2]string{"nobody", "nobody"}
	streamss = [2]string{"no_stream", "no_stream"}
)

func webhook(resource string, match admissionregistrationv1.MatchPolicyType) *admissionregistrationv1.ValidatingWebhookConfiguration {
	return &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "curious"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "curious.example.com", MatchPolicy: &match,
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resource},
					Scope: ptr.To(admissionregistrationv1.NamespacedScope),
				},
			}},
		}},
	}
}

// observed is a write as the gateway's storage has it.
func observed(version string) runtime.Object {
	return &admissionregistration.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "curious", ResourceVersion: version}}
}

var webhooks = admissionregistration.Resource("validatingwebhookconfigurations")

// TestInterestOfTheRealService holds requests against what the real service says of its
// plugins, and of what is written to the API.
func TestInterestOfTheRealService(t *testing.T) {
	api := admissiontest.NewAPI(t)
	service := admissiontest.Start(t, api, "--enable-admission-plugins=NodeRestriction")
	tracker, _ := follow(t, service.Client(t))
	node := &user.DefaultInfo{Name: "system:node:n", Groups: []string{user.NodesGroup}}
	configMaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	ann := &user.DefaultInfo{Name: "ann"}
	for name, test := range map[string]struct {
		request admission.Attributes
		want    [2]string
	}{
		"a ConfigMap":           {request(admission.Create, "configmaps", "ns"), nobodys},
		"a deleted ConfigMap":   {request(admission.Delete, "configmaps", "ns"), nobodys},
		"a Pod":                 {request(admission.Create, "pods", "ns"), [2]string{"interested", "ahead"}},
		"a node's Pod":          {requestBy(node, admission.Create, pods, "", "ns"), [2]string{"interested", "ahead"}},
		"a changed Pod":         {request(admission.Update, "pods", "ns"), [2]string{"interested", "interested"}},
		"a deleted Pod":         {request(admission.Delete, "pods", "ns"), nobodys},
		"a Pod's status":        {requestBy(ann, admission.Update, pods, "status", "ns"), nobodys},
		"a Pod's size":          {requestBy(ann, admission.Update, pods, "resize", "ns"), [2]string{"interested", "interested"}},
		"a new Node":            {request(admission.Create, "nodes", ""), [2]string{"interested", "nobody"}},
		"a node's ConfigMap":    {requestBy(node, admission.Create, configMaps, "", "ns"), [2]string{"interested", "nobody"}},
		"nobody's ConfigMap":    {requestBy(nil, admission.Create, configMaps, "", "ns"), [2]string{"interested", "nobody"}},
		"an odd operation":      {request("READ", "configmaps", "ns"), [2]string{"unintelligible", "unintelligible"}},
		"nothing to be matched": {request(admission.Create, "", "ns"), [2]string{"unintelligible", "unintelligible"}},
	} {
		if got := tracker.verdicts(test.request); got != test.want {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
	settled := map[string]bool{"a Pod": true, "a node's Pod": true}
	for name, a := range map[string]admission.Attributes{
		"a Pod": request(admission.Create, "pods", "ns"), "a node's Pod": requestBy(node, admission.Create, pods, "", "ns"),
		"a changed Pod": request(admission.Update, "pods", "ns"), "a Pod's size": requestBy(ann, admission.Update, pods, "resize", "ns"),
		"a ConfigMap": request(admission.Create, "configmaps", "ns"),
	} {
		if got := tracker.Settled(a, objects()); got != settled[name] {
			t.Errorf("%s: Settled() = %v, want %v", name, got, settled[name])
		}
	}
	if tracker.judge(Mutating, request(admission.Create, "configmaps", "ns"), nil) != unintelligible {
		t.Error("a request without its objects' interfaces was held against rules")
	}
	if !tracker.NamespaceLifecycle() {
		t.Error("NamespaceLifecycle is off")
	}

	api.Apply(t, webhook("configmaps", admissionregistrationv1.Exact))
	wants := func(what string, a admission.Attributes, want [2]string) {
		t.Helper()
		eventually(t, what, func() bool { return tracker.verdicts(a) == want })
	}
	wants("the webhook", request(admission.Create, "configmaps", "ns"), [2]string{"nobody", "interested"})
	if got := tracker.verdicts(request(admission.Update, "configmaps", "ns")); got != nobodys {
		t.Errorf("an update that the webhook has no rule for: got %v", got)
	}
	if got := tracker.verdicts(request(admission.Create, "configmaps", "")); got != nobodys {
		t.Errorf("a resource in no namespace: got %v", got)
	}
	newer := requestBy(ann, admission.Create, schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}, "", "ns")
	api.Apply(t, webhook("events", admissionregistrationv1.Exact))
	wants("the webhook's change", request(admission.Create, "configmaps", "ns"), nobodys)
	if got := tracker.verdicts(newer); got != nobodys {
		t.Errorf("an equivalent resource: got %v", got)
	}
	api.Apply(t, webhook("events", admissionregistrationv1.Equivalent))
	wants("the webhook for equivalents", newer, [2]string{"nobody", "interested"})
	api.Delete(t, webhook("events", admissionregistrationv1.Equivalent))
	wants("the webhook's end", newer, nobodys)

	policy := &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "all"}}
	api.Apply(t, policy)
	wants("the policy without rules", newer, [2]string{"interested", "nobody"})
	api.Delete(t, policy)
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "q"}}
	api.Apply(t, quota)
	wants("the quota", request(admission.Create, "configmaps", "ns"), [2]string{"nobody", "interested"})
	if tracker.Settled(request(admission.Create, "pods", "ns"), objects()) || !tracker.Settled(request(admission.Create, "pods", "other"), objects()) {
		t.Error("a Pod is settled where there is a quota, or is not where there is none")
	}
	for _, other := range []admission.Attributes{request(admission.Create, "configmaps", "other"), request(admission.Update, "configmaps", "ns")} {
		if got := tracker.verdicts(other); got != nobodys {
			t.Errorf("with a quota in ns, %s in %s: got %v", other.GetOperation(), other.GetNamespace(), got)
		}
	}
}

// TestBehind wants nothing to be left out while the stream has not reached what this
// gateway has written, or what another replica has told.
func TestBehind(t *testing.T) {
	api, late := admissiontest.NewAPI(t), admissiontest.NewAPI(t)
	first, second := admissiontest.Start(t, api).Client(t), admissiontest.Start(t, late).Client(t)
	tracker, service := follow(t, first)
	a := request(admission.Create, "configmaps", "ns")
	behinds := [2]string{"behind", "behind"}
	wants := func(what string, want [2]string) {
		t.Helper()
		eventually(t, what, func() bool { return tracker.verdicts(a) == want })
	}
	wants("at first", nobodys)
	// The gateway writes, and the service has not seen it.
	tracker.Observe(webhooks, observed("1"), false)
	if got := tracker.verdicts(a); got != behinds {
		t.Errorf("right after a write: got %v, want %v", got, behinds)
	}
	if version := api.Apply(t, webhook("configmaps", admissionregistrationv1.Exact)); version != "1" {
		t.Fatalf("the write is at %s", version)
	}
	wants("when the service has seen it", [2]string{"nobody", "interested"})
	// Another replica has not.
	service.set(second, false)
	wants("with a replica that lags", behinds)
	late.Apply(t, webhook("pods", admissionregistrationv1.Exact))
	wants("when it has caught up", nobodys)
	// Deletions make no difference, and quotas only in their namespace.
	tracker.Observe(webhooks, observed("100"), true)
	tracker.Observe(quotas, &core.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "other", ResourceVersion: "2"}}, false)
	if got := tracker.verdicts(a); got != nobodys {
		t.Errorf("after a deletion, and a quota elsewhere: got %v, want %v", got, nobodys)
	}
	if got := tracker.verdicts(request(admission.Create, "configmaps", "other")); got != behinds {
		t.Errorf("after a quota: got %v, want %v", got, behinds)
	}
	late.Apply(t, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "q"}})
	eventually(t, "the quota", func() bool {
		return tracker.verdicts(request(admission.Create, "configmaps", "other")) == [2]string{"nobody", "interested"}
	})
}

// TestNoStream cuts the stream, and lets the service lose its API: each call is made, and
// none is when it is back.
func TestNoStream(t *testing.T) {
	api := admissiontest.NewAPI(t)
	running := admissiontest.Start(t, api)
	client := running.Client(t)
	tracker, service := follow(t, client)
	a := request(admission.Create, "configmaps", "ns")
	wants := func(what string, want [2]string) {
		t.Helper()
		eventually(t, what, func() bool { return tracker.verdicts(a) == want })
	}
	service.set(client, true)
	wants("without a stream", streamss)
	if tracker.age() >= 0 || !tracker.NamespaceLifecycle() {
		t.Errorf("without a stream: age %s, NamespaceLifecycle %v, want none and true as before", tracker.age(), tracker.NamespaceLifecycle())
	}
	service.set(client, false)
	wants("with a stream", nobodys)
	running.Restart(t)
	wants("with a new service", nobodys)
	api.SetAvailable(false)
	wants("while the service does not follow", streamss)
	api.SetAvailable(true)
	wants("when the service follows again", nobodys)
}

// TestDoubt wants nothing to be left out after a write of which the outcome is not known,
// until it is known and the stream has told of it.
func TestDoubt(t *testing.T) {
	api := admissiontest.NewAPI(t)
	tracker, _ := follow(t, admissiontest.Start(t, api).Client(t), func(tracker *Tracker) { tracker.settle = 50 * time.Millisecond })
	a := request(admission.Create, "configmaps", "ns")
	answers := make(chan error)
	tracker.Doubt(webhooks, func(ctx context.Context) (uint64, error) {
		select {
		case err := <-answers:
			return 1, err
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	})
	want := func(reason string) {
		t.Helper()
		if got := tracker.verdicts(a); got != [2]string{reason, reason} {
			t.Errorf("got %v, want %s", got, reason)
		}
	}
	want("doubtful")
	answers <- errors.New("etcd is away")
	want("doubtful")
	answers <- nil
	eventually(t, "the outcome is known", func() bool { return tracker.verdicts(a) == [2]string{"behind", "behind"} })
	api.Apply(t, webhook("pods", admissionregistrationv1.Exact))
	eventually(t, "the stream has told of it", func() bool { return tracker.verdicts(a) == nobodys })
}

// TestWritesAreSeenAtOnce has many write and ask at once: who asks after a write was
// acknowledged must not be told that nobody is interested.
func TestWritesAreSeenAtOnce(t *testing.T) {
	api := admissiontest.NewAPI(t)
	tracker, service := follow(t, admissiontest.Start(t, api).Client(t))
	a := request(admission.Create, "configmaps", "ns")
	stop := make(chan struct{})
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() { // The test waits for it.
			for {
				select {
				case <-stop:
					return
				default:
					tracker.Nobody(Validating, a, objects())
				}
			}
		})
	}
	for round := range 100 {
		tracker.Observe(webhooks, observed(fmt.Sprint(2*round+1)), false)
		if tracker.Nobody(Validating, a, objects()) {
			t.Fatalf("round %d: nobody is interested right after the write", round)
		}
		api.Apply(t, webhook("configmaps", admissionregistrationv1.Exact))
		if tracker.Nobody(Validating, a, objects()) {
			t.Fatalf("round %d: nobody is interested after the webhook was made", round)
		}
		if round%25 == 0 {
			service.set(service.client, false)
		}
		api.Delete(t, webhook("configmaps", admissionregistrationv1.Exact))
		eventually(t, "the webhook's end", func() bool { return tracker.Nobody(Validating, a, objects()) })
	}
	close(stop)
	asking.Wait()
}
