package node

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trigate/trigate/deploy/test/framework"
)

// loadWorkers is how many clients write and read at the same time.
const loadWorkers = 4

// load is clients that write and read all the time, with client-go's own retries. They
// are service accounts, so that each request needs all three gates.
type load struct {
	client    kubernetes.Interface // the administrator's
	namespace string
	stop      context.CancelFunc
	workers   sync.WaitGroup

	mu       sync.Mutex // guards what follows
	written  map[string]int
	requests int
	failures []string
}

// startLoad begins. The load ends with the test, if not before.
func (c *trigate) startLoad(t *testing.T) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{client: c.Client(t), stop: cancel, written: map[string]int{}}
	l.namespace = l.prepare(t, c)
	token := strings.TrimSpace(c.MustKubectl(t, "--namespace", l.namespace, "create", "token", "loader", "--duration=2h"))
	for i := range loadWorkers {
		config := rest.AnonymousClientConfig(c.Config(t))
		config.BearerToken, config.QPS = token, -1
		client := framework.ClientFor(t, config)
		l.workers.Go(func() { l.work(ctx, client, fmt.Sprintf("worker-%d", i)) })
	}
	t.Cleanup(func() {
		cancel()
		l.workers.Wait()
	})
	l.proceeds(t)
	return l
}

// prepare makes a namespace with a service account that may write ConfigMaps.
func (l *load) prepare(t *testing.T, c *trigate) string {
	t.Helper()
	created, err := l.client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "load-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.MustKubectl(t, "--namespace", created.Name, "create", "serviceaccount", "loader")
	c.MustKubectl(t, "--namespace", created.Name, "create", "role", "loader", "--verb=*", "--resource=configmaps")
	c.MustKubectl(t, "--namespace", created.Name, "create", "rolebinding", "loader", "--role=loader", "--serviceaccount="+created.Name+":loader")
	return created.Name
}

// work writes one object again and again, and looks that the last write is there.
func (l *load) work(ctx context.Context, client kubernetes.Interface, name string) {
	configMaps := client.CoreV1().ConfigMaps(l.namespace)
	object, err := configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if !l.done(ctx, "create "+name, err) {
		return
	}
	for n := 1; ctx.Err() == nil; n++ {
		object.Data = map[string]string{"n": strconv.Itoa(n)}
		updated, err := configMaps.Update(ctx, object, metav1.UpdateOptions{})
		if !l.done(ctx, fmt.Sprintf("update %s to %d", name, n), err) {
			if updated, err = configMaps.Get(ctx, name, metav1.GetOptions{}); err != nil {
				continue
			}
		} else {
			l.acknowledge(name, n)
		}
		object = updated
		got, err := configMaps.Get(ctx, name, metav1.GetOptions{})
		if l.done(ctx, "get "+name, err) && got.Data["n"] != object.Data["n"] {
			l.done(ctx, "get "+name, fmt.Errorf("n = %s, want %s as written", got.Data["n"], object.Data["n"]))
		}
		_, err = configMaps.List(ctx, metav1.ListOptions{})
		l.done(ctx, "list", err)
	}
}

// done counts a request and tells whether it succeeded.
func (l *load) done(ctx context.Context, what string, err error) bool {
	if ctx.Err() != nil {
		return false // the end of the test, not a failure
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests++
	if err != nil {
		l.failures = append(l.failures, fmt.Sprintf("%s: %v (%T)", what, err, err))
	}
	return err == nil
}

func (l *load) acknowledge(name string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.written[name] = n
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requests
}

// proceeds waits until some more requests have been answered.
func (l *load) proceeds(t *testing.T) {
	t.Helper()
	before := l.count()
	framework.Eventually(t, "requests of the load", func() error {
		if got := l.count() - before; got < 20*loadWorkers {
			return fmt.Errorf("%d requests answered", got)
		}
		return nil
	})
}

// noFailures reports the requests that failed since it was last called.
func (l *load) noFailures(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Logf("%d requests so far", l.requests)
	for i, failure := range l.failures {
		if i == 10 {
			t.Errorf("and %d more", len(l.failures)-i)
			break
		}
		t.Error(failure)
	}
	l.failures = nil
}

// nothingLost stops the load and looks for every write that was acknowledged.
func (l *load) nothingLost(t *testing.T) {
	t.Helper()
	l.stop()
	l.workers.Wait()
	l.mu.Lock()
	written := maps.Clone(l.written)
	l.mu.Unlock()
	if len(written) != loadWorkers {
		t.Errorf("%d workers wrote, want %d", len(written), loadWorkers)
	}
	for name, want := range written {
		object, err := l.client.CoreV1().ConfigMaps(l.namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Errorf("%s is lost: %v", name, err)
			continue
		}
		// A write under way at the end may have been made and not been acknowledged.
		if got, err := strconv.Atoi(object.Data["n"]); err != nil || got < want || got > want+1 {
			t.Errorf("%s = %q, want %d as acknowledged", name, object.Data["n"], want)
		}
	}
}
