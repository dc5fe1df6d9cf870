package outage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trigate/trigate/deploy/test/framework"
)

// traffic is somebody who reads and writes all the time.
type traffic struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu sync.Mutex
	// acknowledged are the ConfigMaps whose creation was confirmed.
	acknowledged []string
	// errs are the requests that failed for good, after client-go's own tries.
	errs []error
	// breaches are what should have been refused and was not.
	breaches []string
}

// newTraffic starts writers and readers as Ann, and Eve, who may do nothing and tries
// all the same. Their requests follow on each other; stop ends them.
func newTraffic(t *testing.T, c *framework.Cluster) *traffic {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	tr := &traffic{cancel: cancel}
	for i := range 2 {
		client := clientFor(t, c.User(t, ann))
		tr.run(ctx, func(n int) { tr.write(ctx, client, fmt.Sprintf("traffic-%d-%d", i, n)) })
		tr.run(ctx, func(int) { tr.read(ctx, client) })
	}
	intruder := clientFor(t, c.User(t, eve))
	tr.run(ctx, func(n int) { tr.intrude(ctx, intruder, fmt.Sprintf("intruder-%d", n)) })
	return tr
}

func (tr *traffic) run(ctx context.Context, once func(n int)) {
	tr.done.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			once(n)
		}
	})
}

func (tr *traffic) write(ctx context.Context, client kubernetes.Interface, name string) {
	_, err := client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if ctx.Err() != nil {
		return // its answer did not come any more
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	switch {
	case err == nil, apierrors.IsAlreadyExists(err): // the latter of a second try
		tr.acknowledged = append(tr.acknowledged, name)
	default:
		tr.errs = append(tr.errs, fmt.Errorf("creating %s: %w", name, err))
	}
}

func (tr *traffic) read(ctx context.Context, client kubernetes.Interface) {
	_, err := client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil && ctx.Err() == nil {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		tr.errs = append(tr.errs, fmt.Errorf("listing: %w", err))
	}
}

func (tr *traffic) intrude(ctx context.Context, client kubernetes.Interface, name string) {
	_, err := client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if ctx.Err() != nil {
		return
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	switch {
	case err == nil:
		tr.breaches = append(tr.breaches, name)
	case !apierrors.IsForbidden(err):
		tr.errs = append(tr.errs, fmt.Errorf("Eve, creating %s: %w", name, err))
	}
}

// written returns how many writes were acknowledged so far.
func (tr *traffic) written() int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return len(tr.acknowledged)
}

// goesOn waits until more writes were acknowledged.
func (tr *traffic) goesOn(t *testing.T) {
	t.Helper()
	before := tr.written()
	framework.Eventually(t, "writes go on", func() error {
		if tr.written() < before+20 {
			return errors.New("they do not")
		}
		return nil
	})
}

// stop ends the traffic and wants that no acknowledged write was lost and that
// nothing was allowed to Eve.
func (tr *traffic) stop(t *testing.T, c *framework.Cluster) {
	t.Helper()
	tr.cancel()
	tr.done.Wait()
	list, err := c.Client(t).CoreV1().ConfigMaps("default").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stored := map[string]bool{}
	for i := range list.Items {
		stored[list.Items[i].Name] = true
	}
	for _, name := range tr.acknowledged {
		if !stored[name] {
			t.Errorf("the write of %s was acknowledged and is lost", name)
		}
	}
	if len(tr.breaches) > 0 {
		t.Errorf("Eve was allowed to write %q", tr.breaches)
	}
	t.Logf("%d writes were acknowledged, %d requests failed for good", len(tr.acknowledged), len(tr.errs))
}

// TestKilledGates kills each gate under traffic. The local runner starts it again.
func TestKilledGates(t *testing.T) {
	c := framework.StartTrigate(t, framework.TrigateOptions{})
	letIn(t, c, rbacv1.Subject{Kind: "User", Name: ann})
	framework.Eventually(t, "Ann is let in", func() error {
		_, err := clientFor(t, c.User(t, ann)).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		return err
	})
	tr := newTraffic(t, c)
	for _, gate := range []string{authn, authz, admission, authz} {
		tr.goesOn(t)
		c.Signal(t, gate, syscall.SIGKILL)
		tr.goesOn(t)
		framework.Eventually(t, gate+" is back", func() error {
			_, err := c.Probe(t, "/readyz")
			return err
		})
	}
	tr.stop(t, c)
	// A gate is back within seconds, and client-go tries for longer than that.
	for _, err := range tr.errs {
		t.Error(err)
	}
}

// TestOneReplicaKilled kills one of two replicas of each gate, which stays away: no
// request may fail, not even once.
func TestOneReplicaKilled(t *testing.T) {
	p := start(t, framework.PartsOptions{Replicas: 2})
	begin := time.Now()
	tr := newTraffic(t, p.Cluster)
	for _, gate := range []string{authn, authz, admission} {
		tr.goesOn(t)
		p.Kill(t, gate)
		tr.goesOn(t)
	}
	if _, err := p.Probe(t, "/readyz"); err != nil {
		t.Errorf("/readyz with one replica of each = %v, want ok", err)
	}
	tr.stop(t, p.Cluster)
	for _, err := range tr.errs {
		t.Error(err)
	}
	t.Logf("the traffic went on for %v", time.Since(begin))
}
