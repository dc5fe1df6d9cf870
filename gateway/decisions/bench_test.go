package decisions

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/client-go/tools/cache"
	rbacauthorizer "k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/authztest"
	authzclient "github.com/trigate/trigate/services/authz/client"
)

const (
	// concurrency is how many ask at the same time where it matters.
	concurrency = 8
	// batch is how many questions are in one call of BatchAuthorize.
	batch = 50
)

// BenchmarkDecision decides the same question in each of the ways that there are, in
// one run. The question is that of the last of many service accounts, each with a
// cluster role binding of its own. CPU is that of the whole process: of a call, both
// sides.
func BenchmarkDecision(b *testing.B) {
	for _, bindings := range []int{100, 1_000, 10_000} {
		objects, question := clusterOf(bindings)
		service := authztest.Start(b, objects...)
		cached := followService(b, service.Client(b))
		calls, stream := authzclient.New(service.Conn(b)), service.Client(b)
		stub := authzv1.NewAuthorizationServiceClient(service.Conn(b))
		b.Run(fmt.Sprintf("bindings=%d/upstream in process", bindings), func(b *testing.B) {
			benchmark(b, 1, 1, allows(upstreamOf(b, objects), question))
		})
		b.Run(fmt.Sprintf("bindings=%d/gateway, cached", bindings), func(b *testing.B) {
			benchmark(b, 1, 1, allows(cached, question))
		})
		b.Run(fmt.Sprintf("bindings=%d/service, call", bindings), func(b *testing.B) {
			benchmark(b, concurrency, 1, allows(calls, question))
		})
		b.Run(fmt.Sprintf("bindings=%d/service, stream", bindings), func(b *testing.B) {
			benchmark(b, concurrency, 1, allows(stream, question))
		})
		for _, form := range forms {
			b.Run(fmt.Sprintf("bindings=%d/service, %s of %d", bindings, form.name, batch), func(b *testing.B) {
				benchmark(b, 1, batch, form.ask(stub, question))
			})
		}
	}
}

// form is a form of a batch: a call of ask's function asks the questions of one.
type form struct {
	name string
	ask  func(authzv1.AuthorizationServiceClient, *authorizer.AttributesRecord) func() error
}

// forms are the forms of a batch. Those of kinds have no two questions which the same answer
// is good for.
var forms = []form{
	{"batch", func(stub authzv1.AuthorizationServiceClient, question *authorizer.AttributesRecord) func() error {
		return allowsBatch(stub, question, false)
	}},
	{"compact batch", func(stub authzv1.AuthorizationServiceClient, question *authorizer.AttributesRecord) func() error {
		return allowsBatch(stub, question, true)
	}},
	{"compact batch, kinds", func(stub authzv1.AuthorizationServiceClient, question *authorizer.AttributesRecord) func() error {
		return allowsBatch(stub, question, true, func(i int, attributes *authzv1.Attributes) { attributes.ApiVersion = kind(i) })
	}},
	{"batch in columns", func(stub authzv1.AuthorizationServiceClient, question *authorizer.AttributesRecord) func() error {
		return allowsActions(stub, question, false)
	}},
	{"batch in columns, kinds", func(stub authzv1.AuthorizationServiceClient, question *authorizer.AttributesRecord) func() error {
		return allowsActions(stub, question, true)
	}},
}

func kind(i int) string { return fmt.Sprint("v1alpha", i) }

// benchmark asks from so many goroutines; each call of ask is so many questions.
func benchmark(b *testing.B, askers, questions int, ask func() error) {
	b.Helper()
	if err := ask(); err != nil { // connects, and fills the cache
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	before := cpu(b)
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for range askers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for left.Add(-int64(questions)) > -int64(questions) {
				if err := ask(); err != nil {
					b.Error(err)
					return
				}
			}
		}()
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

// cpu returns what the process has used.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func allows(a authorizer.Authorizer, question authorizer.Attributes) func() error {
	return func() error {
		decision, reason, err := a.Authorize(context.Background(), question)
		if decision != authorizer.DecisionAllow {
			return fmt.Errorf("got %v, %q, %v, want Allow", decision, reason, err)
		}
		return nil
	}
}

// allowsBatch asks of so many Pods whether the user of the question may act on them.
func allowsBatch(stub authzv1.AuthorizationServiceClient, question *authorizer.AttributesRecord, compact bool, change ...func(int, *authzv1.Attributes)) func() error {
	asker := &authnv1.UserInfo{Name: question.User.GetName(), Groups: question.User.GetGroups()}
	request := &authzv1.BatchAuthorizeRequest{Compact: compact}
	if compact {
		request.User = asker
	}
	for i := range batch {
		attributes := &authzv1.Attributes{
			Verb: question.Verb, Namespace: question.Namespace, ApiVersion: question.APIVersion,
			Resource: question.Resource, Name: fmt.Sprintf("%s-%d", question.Name, i), ResourceRequest: true,
		}
		if !compact {
			attributes.User = asker
		}
		for _, changed := range change {
			changed(i, attributes)
		}
		request.Questions = append(request.Questions, &authzv1.AuthorizeRequest{Attributes: attributes})
	}
	return func() error {
		response, err := stub.BatchAuthorize(context.Background(), request)
		if err != nil {
			return err
		}
		for _, result := range response.GetResults() {
			if result.GetResponse().GetDecision() != authzv1.Decision_DECISION_ALLOW {
				return fmt.Errorf("got %v, want Allow", result)
			}
		}
		return nil
	}
}

// allowsActions is allowsBatch for questions in columns, either of one kind or such that
// no answer is good for two.
func allowsActions(stub authzv1.AuthorizationServiceClient, question *authorizer.AttributesRecord, kinds bool) func() error {
	actions := &authzv1.Actions{
		Verbs: []string{question.Verb}, Namespaces: []string{question.Namespace}, ApiVersions: []string{question.APIVersion},
		Resources: []string{question.Resource},
	}
	if kinds {
		actions.ApiVersions = nil
	}
	for i := range batch {
		actions.Names = append(actions.Names, fmt.Sprintf("%s-%d", question.Name, i))
		if kinds {
			actions.ApiVersions = append(actions.ApiVersions, kind(i))
		}
	}
	request := &authzv1.BatchAuthorizeRequest{
		User:    &authnv1.UserInfo{Name: question.User.GetName(), Groups: question.User.GetGroups()},
		Actions: actions,
	}
	return func() error {
		response, err := stub.BatchAuthorize(context.Background(), request)
		if err != nil {
			return err
		}
		if n := len(response.GetAnswers()); n != batch {
			return fmt.Errorf("got %d answers, want %d", n, batch)
		}
		for _, place := range response.GetAnswers() {
			if result := response.GetResults()[place]; result.GetResponse().GetDecision() != authzv1.Decision_DECISION_ALLOW {
				return fmt.Errorf("got %v, want Allow", result)
			}
		}
		return nil
	}
}

// clusterOf has service accounts with a cluster role binding each.
func clusterOf(bindings int) ([]runtime.Object, *authorizer.AttributesRecord) {
	objects := []runtime.Object{&rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{""}, Resources: []string{"pods"}}},
	}}
	for i := range bindings {
		objects = append(objects, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("reader-%05d", i)},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "apps", Name: fmt.Sprintf("app-%05d", i)}},
		})
	}
	return objects, &authorizer.AttributesRecord{
		User: &user.DefaultInfo{
			Name:   fmt.Sprintf("system:serviceaccount:apps:app-%05d", bindings-1),
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:apps", user.AllAuthenticated},
		},
		Verb: "get", Namespace: "apps", APIVersion: "v1", Resource: "pods", Name: "app-0", ResourceRequest: true,
	}
}

// upstreamOf is kube-apiserver's authorizer over its listers.
func upstreamOf(b *testing.B, objects []runtime.Object) authorizer.Authorizer {
	b.Helper()
	byNamespace := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	roles, bindings := cache.NewIndexer(cache.MetaNamespaceKeyFunc, byNamespace), cache.NewIndexer(cache.MetaNamespaceKeyFunc, byNamespace)
	none := cache.NewIndexer(cache.MetaNamespaceKeyFunc, byNamespace)
	for _, object := range objects {
		store := bindings
		if _, ok := object.(*rbacv1.ClusterRole); ok {
			store = roles
		}
		if err := store.Add(object); err != nil {
			b.Fatal(err)
		}
	}
	return rbacauthorizer.New(
		&rbacauthorizer.RoleGetter{Lister: rbaclisters.NewRoleLister(none)},
		&rbacauthorizer.RoleBindingLister{Lister: rbaclisters.NewRoleBindingLister(none)},
		&rbacauthorizer.ClusterRoleGetter{Lister: rbaclisters.NewClusterRoleLister(roles)},
		&rbacauthorizer.ClusterRoleBindingLister{Lister: rbaclisters.NewClusterRoleBindingLister(bindings)},
	)
}

// BenchmarkHit is a decision that is kept, by how far it may be reused.
func BenchmarkHit(b *testing.B) {
	for name, reuse := range map[string]authzclient.Reuse{
		"any namespace": authzclient.ReuseAnyNamespace, "any name": authzclient.ReuseAnyName, "same name": authzclient.ReuseSameName,
	} {
		b.Run(name, func(b *testing.B) {
			c, s := start(b)
			s.set(func() { s.answer.Reuse = reuse })
			_, question := clusterOf(1)
			benchmark(b, 1, 1, allows(c, question))
			if s.calls() != 1 {
				b.Errorf("%d questions were asked of the service, want 1", s.calls())
			}
		})
	}
}
