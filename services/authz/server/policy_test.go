package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/internal/chain"
	"github.com/trigate/trigate/services/authz/internal/policy"
	"github.com/trigate/trigate/services/internal/apitest"
	"github.com/trigate/trigate/services/internal/process"
	"github.com/trigate/trigate/services/internal/rpcerr"
	"github.com/trigate/trigate/services/internal/servetest"
)

// binding lets user jane get pods in a namespace, by a role of the same name.
func binding(namespace, name string) []runtime.Object {
	return []runtime.Object{
		&rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "jane"}},
		},
	}
}

// withRBAC is the configuration of a server that decides by an API's RBAC objects,
// all of which it has read, and follows.
func withRBAC(t testing.TB, api *apitest.Server) Config {
	t.Helper()
	restConfig, err := process.RESTConfig(api.Kubeconfig(t), "test")
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		t.Fatal(err)
	}
	store := policy.NewStore()
	reader := policy.NewReader(store, client)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(func() {
		cancel()
		reader.Shutdown()
	})
	reader.StartWithContext(ctx)
	servetest.Eventually(t, func() error {
		if !store.Following() {
			return errors.New("the policy is not followed")
		}
		return nil
	})
	options := kubeoptions.NewBuiltInAuthorizationOptions()
	options.Modes = []string{"RBAC"}
	upstream, err := options.ToAuthorizationConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := chain.New(t.Context(), chain.Config{Upstream: *upstream, Policy: store, ServerID: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return Config{Authorizer: c, Rules: c, Policy: store, MayWait: c.MayWait, Configuration: c.Configuration}
}

// getPods asks whether jane may get pods in a namespace, by a policy at least as
// fresh as some roles.
func getPods(namespace string, roles uint64) *authzv1.AuthorizeRequest {
	return &authzv1.AuthorizeRequest{
		Attributes: &authzv1.Attributes{
			User: &authnv1.UserInfo{Name: "jane"}, Verb: "get", ResourceRequest: true, Namespace: namespace, Resource: "pods", Name: "web",
		},
		AtLeastAsFreshAs: &authzv1.PolicyRevision{Roles: roles},
	}
}

// TestFreshness asks for a policy that is fresh enough, in each way to ask.
func TestFreshness(t *testing.T) {
	api := apitest.New(t, binding("ns", "one")...)
	authz := stub(t, withRBAC(t, api))
	response, err := authz.Authorize(t.Context(), getPods("ns", 2))
	if err != nil {
		t.Fatal(err)
	}
	if response.GetDecision() != authzv1.Decision_DECISION_ALLOW || response.GetReuse() != authzv1.Reuse_REUSE_ANY_NAME || response.GetConfiguration() == "" {
		t.Errorf("Authorize() = %v, want an answer for any name", response)
	}
	want := &authzv1.PolicyRevision{ClusterRoles: 2, ClusterRoleBindings: 2, Roles: 2, RoleBindings: 2}
	if diff := cmp.Diff(want, response.GetRevision(), protocmp.Transform()); diff != "" {
		t.Errorf("revision (-want +got):\n%s", diff)
	}

	// A policy that comes while the question waits.
	waiting := make(chan error, 1)
	go func() {
		_, err := authz.Authorize(t.Context(), getPods("ns", 3))
		waiting <- err
	}()
	api.Apply(t, binding("other", "one")[0])
	if err := <-waiting; err != nil {
		t.Errorf("Authorize() = %v for a policy that came, want nil", err)
	}

	// A policy that does not come.
	_, tooFresh := authz.Authorize(t.Context(), getPods("ns", 100))
	_, rulesErr := authz.ListRules(t.Context(), &authzv1.ListRulesRequest{
		User: &authnv1.UserInfo{Name: "jane"}, Namespace: "ns", AtLeastAsFreshAs: &authzv1.PolicyRevision{RoleBindings: 100},
	})
	for what, err := range map[string]error{"Authorize": tooFresh, "ListRules": rulesErr} {
		if e, ok := rpcerr.As(err); !ok || e.Reason != rpcerr.ReasonNotSynced || e.Code() != codes.Unavailable {
			t.Errorf("%s() = %v, want Unavailable", what, err)
		}
	}
	_, batchErr := authz.BatchAuthorize(t.Context(), &authzv1.BatchAuthorizeRequest{Questions: []*authzv1.AuthorizeRequest{
		getPods("ns", 100), getPods("ns", 200),
	}})
	if status.Code(batchErr) != codes.Unavailable {
		t.Errorf("BatchAuthorize() = %v, want Unavailable", batchErr)
	}
	start := time.Now()
	batch, err := authz.BatchAuthorize(t.Context(), &authzv1.BatchAuthorizeRequest{Questions: []*authzv1.AuthorizeRequest{
		getPods("ns", 100), getPods("ns", 3), {}, getPods("other", 200), getPods("none", 0),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if elapsed := time.Since(start); elapsed > 2*patience {
		t.Errorf("BatchAuthorize() took %v, want the questions to wait together", elapsed)
	}
	var got []string
	for _, result := range batch.GetResults() {
		got = append(got, fmt.Sprint(result.GetResponse().GetDecision(), " ", codes.Code(result.GetError().GetCode())))
	}
	if diff := cmp.Diff([]string{
		"DECISION_UNSPECIFIED Unavailable", "DECISION_ALLOW OK", "DECISION_UNSPECIFIED InvalidArgument",
		"DECISION_UNSPECIFIED Unavailable", "DECISION_NO_OPINION OK",
	}, got); diff != "" {
		t.Errorf("BatchAuthorize() (-want +got):\n%s", diff)
	}
	if message := batch.GetResults()[2].GetError().GetMessage(); message != "attributes: is required" {
		t.Errorf("message = %q, want that of Authorize", message)
	}
}

// watch opens a watch, and reads its first message.
func watch(t *testing.T, authz authzv1.AuthorizationServiceClient) (grpc.ServerStreamingClient[authzv1.WatchPolicyRevisionResponse], *authzv1.WatchPolicyRevisionResponse) {
	t.Helper()
	stream, err := authz.WatchPolicyRevision(t.Context(), &authzv1.WatchPolicyRevisionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return stream, receive(t, stream)
}

func receive(t *testing.T, stream grpc.ServerStreamingClient[authzv1.WatchPolicyRevisionResponse]) *authzv1.WatchPolicyRevisionResponse {
	t.Helper()
	message, err := stream.Recv()
	if err != nil {
		t.Fatalf("Recv() = %v", err)
	}
	return message
}

// until reads a watch until a message holds.
func until(t *testing.T, stream grpc.ServerStreamingClient[authzv1.WatchPolicyRevisionResponse], holds func(*authzv1.WatchPolicyRevisionResponse) bool) *authzv1.WatchPolicyRevisionResponse {
	t.Helper()
	for range 30 {
		if message := receive(t, stream); holds(message) {
			return message
		}
	}
	t.Fatal("no message as wanted")
	return nil
}

// TestWatch follows changes of the policy, the configuration, and the connection.
func TestWatch(t *testing.T) {
	api := apitest.New(t, binding("ns", "one")...)
	cfg := withRBAC(t, api)
	configurations := make(chan chan struct{}, 2)
	first, second := make(chan struct{}), make(chan struct{})
	configurations <- first
	configurations <- second
	current, number := <-configurations, 1
	cfg.Configuration = func() (string, <-chan struct{}) {
		select {
		case <-current:
			current, number = <-configurations, number+1
		default:
		}
		return strconv.Itoa(number), current
	}
	stream, message := watch(t, stub(t, cfg))
	want := &authzv1.WatchPolicyRevisionResponse{
		Revision:      &authzv1.PolicyRevision{ClusterRoles: 2, ClusterRoleBindings: 2, Roles: 2, RoleBindings: 2},
		Changed:       &authzv1.PolicyRevision{Roles: 1, RoleBindings: 2},
		Configuration: "1", Following: true,
	}
	if diff := cmp.Diff(want, message, protocmp.Transform()); diff != "" {
		t.Errorf("first message (-want +got):\n%s", diff)
	}

	start := time.Now()
	if message := receive(t, stream); len(message.GetChanges()) > 0 || time.Since(start) > 3*watchInterval {
		t.Errorf("message = %v after %v, want one without changes each second", message, time.Since(start))
	}

	api.Delete(t, binding("ns", "one")[1])
	message = until(t, stream, func(m *authzv1.WatchPolicyRevisionResponse) bool { return len(m.GetChanges()) > 0 })
	if diff := cmp.Diff([]*authzv1.PolicyChange{{Namespace: "ns", Revision: &authzv1.PolicyRevision{RoleBindings: 3}}}, message.GetChanges(), protocmp.Transform()); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if got := message.GetRevision().GetRoleBindings(); got != 3 {
		t.Errorf("revision = %d, want 3", got)
	}

	close(first)
	until(t, stream, func(m *authzv1.WatchPolicyRevisionResponse) bool { return m.GetConfiguration() == "2" })

	api.SetAvailable(false)
	until(t, stream, func(m *authzv1.WatchPolicyRevisionResponse) bool { return !m.GetFollowing() })
	api.SetAvailable(true)
	until(t, stream, func(m *authzv1.WatchPolicyRevisionResponse) bool { return m.GetFollowing() })
}

// TestWatchNotSynced has nothing to tell yet.
func TestWatchNotSynced(t *testing.T) {
	denying := newChain(t, "AlwaysDeny")
	stream, err := stub(t, Config{Authorizer: denying, Synced: func() bool { return false }}).
		WatchPolicyRevision(t.Context(), &authzv1.WatchPolicyRevisionRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("WatchPolicyRevision() = %v, want Unavailable", err)
	}
}

// TestWatchWithoutPolicy has a service that decides by nothing that can change.
func TestWatchWithoutPolicy(t *testing.T) {
	denying := newChain(t, "AlwaysDeny")
	digest, _ := denying.Configuration()
	_, message := watch(t, stub(t, Config{Authorizer: denying, Configuration: denying.Configuration}))
	want := &authzv1.WatchPolicyRevisionResponse{Revision: &authzv1.PolicyRevision{}, Configuration: digest, Following: true}
	if diff := cmp.Diff(want, message, protocmp.Transform()); diff != "" {
		t.Errorf("first message (-want +got):\n%s", diff)
	}
}

// TestFreshnessWithoutPolicy wants a decision by nothing that can change to be as
// fresh as asked for, so that it may be kept.
func TestFreshnessWithoutPolicy(t *testing.T) {
	asked := getPods("ns", 100)
	response, err := stub(t, Config{Authorizer: newChain(t, "AlwaysDeny")}).Authorize(t.Context(), asked)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(asked.GetAtLeastAsFreshAs(), response.GetRevision(), protocmp.Transform()); diff != "" {
		t.Errorf("revision (-want +got):\n%s", diff)
	}
}

// TestSlowWatcher has a caller that does not read: it is told what has changed in
// one message, and nothing is lost.
func TestSlowWatcher(t *testing.T) {
	api := apitest.New(t)
	cfg := withRBAC(t, api)
	w := watcher{server: newServer(t, cfg), subscription: cfg.Policy.Subscribe()}
	defer w.subscription.Close()
	sending, reading := make(chan struct{}), make(chan *authzv1.WatchPolicyRevisionResponse)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- w.run(ctx, w.subscription.Wake(), func(m *authzv1.WatchPolicyRevisionResponse) error {
			sending <- struct{}{}
			reading <- m
			return nil
		})
	}()
	<-sending // the first message is under way, and not read
	for i := range 50 {
		api.Apply(t, binding("a", strconv.Itoa(i))...)
		api.Apply(t, binding("b", strconv.Itoa(i))...)
	}
	if err := cfg.Policy.Wait(t.Context(), policy.Positions{policy.Roles: 199, policy.RoleBindings: 200}); err != nil {
		t.Fatal(err)
	}
	<-reading
	<-sending
	message := <-reading
	want := []*authzv1.PolicyChange{
		{Namespace: "a", Revision: &authzv1.PolicyRevision{Roles: 197, RoleBindings: 198}},
		{Namespace: "b", Revision: &authzv1.PolicyRevision{Roles: 199, RoleBindings: 200}},
	}
	if diff := cmp.Diff(want, message.GetChanges(), protocmp.Transform(),
		protocmp.SortRepeated(func(a, b *authzv1.PolicyChange) bool { return a.GetNamespace() < b.GetNamespace() })); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	cancel()
	for {
		select {
		case <-sending:
			<-reading
			continue
		case err := <-done:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("run() = %v, want Canceled", err)
			}
		}
		return
	}
}
