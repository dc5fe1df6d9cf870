package rotation

import (
	"context"
	"fmt"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trigate/trigate/deploy/test/framework"
)

// namespace is where the traffic is, by certificate (ann) and by token (robot).
const (
	namespace = "rotation"
	ann       = "ann"
	robot     = "robot"
)

// traffic is a client with a certificate and one with a token that write, read and
// have tokens issued all the time, by client-go as it is.
type traffic struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu sync.Mutex // guards the fields below
	// created are the names of the ConfigMaps whose creation was acknowledged.
	created []string
	// requests counts those that succeeded, and errs are the others.
	requests int
	errs     []error
}

func startTraffic(t *testing.T, c *framework.Cluster) *traffic {
	t.Helper()
	core := c.Client(t).CoreV1()
	for _, err := range []error{
		second(core.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})),
		second(core.ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: robot}}, metav1.CreateOptions{})),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	subject := "system:serviceaccount:" + namespace + ":" + robot
	for _, user := range []string{ann, subject} {
		c.Grant(t, framework.Grant{
			Name: "rotation-" + user, User: user, Namespace: namespace,
			Rules: rules(framework.May("*", "", "configmaps,serviceaccounts/token")),
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	tr := &traffic{cancel: cancel}
	byCertificate := framework.ClientFor(t, c.User(t, ann))
	byToken := framework.ClientFor(t, c.Token(t, c.ServiceAccountToken(t, namespace, robot)))
	tr.run(ctx, func(n int) { tr.write(ctx, byCertificate, fmt.Sprintf("anns-%d", n)) })
	tr.run(ctx, func(n int) { tr.write(ctx, byToken, fmt.Sprintf("robots-%d", n)) })
	tr.run(ctx, func(int) {
		request, err := byCertificate.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, robot, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		tr.record(ctx, "", err)
		if err != nil {
			return
		}
		fresh := framework.ClientFor(t, c.Token(t, request.Status.Token))
		tr.record(ctx, "", second(fresh.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{Limit: 1})))
	})
	return tr
}

func second[T any](_ T, err error) error { return err }

func (tr *traffic) run(ctx context.Context, once func(n int)) {
	tr.done.Go(func() {
		for n := 1; ctx.Err() == nil; n++ {
			once(n)
		}
	})
}

func (tr *traffic) write(ctx context.Context, client kubernetes.Interface, name string) {
	maps := client.CoreV1().ConfigMaps(namespace)
	tr.record(ctx, name, second(maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})))
	tr.record(ctx, "", second(maps.Get(ctx, name, metav1.GetOptions{})))
}

// record takes the outcome of a request, unless it was interrupted, and what it has
// created.
func (tr *traffic) record(ctx context.Context, created string, err error) {
	if ctx.Err() != nil {
		return
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	switch {
	case err != nil:
		tr.errs = append(tr.errs, err)
	case created != "":
		tr.created = append(tr.created, created)
		fallthrough
	default:
		tr.requests++
	}
}

func (tr *traffic) succeeded() int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.requests
}

// goesOn waits until more requests have succeeded.
func (tr *traffic) goesOn(t *testing.T) {
	t.Helper()
	const enough = 200
	before := tr.succeeded()
	framework.Eventually(t, "requests go on", func() error {
		if n := tr.succeeded() - before; n < enough {
			return fmt.Errorf("only %d succeeded", n)
		}
		return nil
	})
}

// stop ends the traffic. No request may have failed and no acknowledged write be
// lost.
func (tr *traffic) stop(t *testing.T, c *framework.Cluster) {
	t.Helper()
	tr.cancel()
	tr.done.Wait()
	list, err := c.Client(t).CoreV1().ConfigMaps(namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stored := map[string]bool{}
	for _, item := range list.Items {
		stored[item.Name] = true
	}
	for _, name := range tr.created {
		if !stored[name] {
			t.Errorf("the creation of %s was acknowledged and is lost", name)
		}
	}
	for _, err := range tr.errs {
		t.Error(err)
	}
	t.Logf("%d requests succeeded, %d of them creations", tr.requests, len(tr.created))
}
