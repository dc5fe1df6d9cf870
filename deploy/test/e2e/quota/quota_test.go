// Package quota tests that a quota of N objects lets N objects be made, and never one
// more: by many writers at once, over several gateways, and while the service that
// counts dies and comes back.
package quota

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

// writers is how many write at once.
const writers = 64

// counted is what the quotas limit.
const counted corev1.ResourceName = "count/secrets"

func TestManyWritersMakeExactlyWhatTheQuotaHas(t *testing.T) {
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		const limit = 100
		w := startWriters(t, limit, c)
		w.wait(t)
		w.wantMade(t, limit)
	})
}

// TestManyWritersOverSeveralGateways has replicas of the service that count the same
// quota at once.
func TestManyWritersOverSeveralGateways(t *testing.T) {
	p := framework.NewParts(t, framework.PartsOptions{Gateways: 2, Replicas: 2, Controllers: true})
	p.Start(t, p.Names()...)
	p.AwaitReady(t)

	t.Run("undisturbed", func(t *testing.T) {
		const limit = 100
		w := startWriters(t, limit, p.Gateways(t)...)
		w.wait(t)
		w.wantMade(t, limit)
	})
	t.Run("while the service is killed", func(t *testing.T) {
		const limit = 400
		w := startWriters(t, limit, p.Gateways(t)...)
		for i, killed := range [][]string{{"admission"}, {"admission.2"}, {"admission", "admission.2"}} {
			w.awaitMade(t, (i+1)*limit/5)
			p.Kill(t, killed...)
			p.Start(t, killed...)
			p.AwaitReady(t)
		}
		w.wait(t)
		// What was counted for a write that then did not happen stays counted, as it does
		// when kube-apiserver dies, until the controller counts anew.
		w.wantMade(t, -limit)
		w.countAnew(t)
		w.write(t)
		w.wait(t)
		w.wantMade(t, limit)
	})
}

// crowd are writers of Secrets in one namespace, all of which go on until the quota has
// nothing left.
type crowd struct {
	namespace string
	limit     int
	clients   []kubernetes.Interface // one for each gateway

	names atomic.Int64 // of the Secrets
	made  atomic.Int64 // acknowledged

	ctx  context.Context
	done sync.WaitGroup

	mu   sync.Mutex // guards errs
	errs []error
}

// startWriters makes a quota of limit Secrets, and has all of them write.
func startWriters(t *testing.T, limit int, gateways ...*framework.Cluster) *crowd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), framework.Timeout)
	w := &crowd{namespace: gateways[0].Namespace(t), limit: limit, ctx: ctx}
	t.Cleanup(func() {
		cancel()
		w.done.Wait()
	})
	for _, gateway := range gateways {
		w.clients = append(w.clients, gateway.Client(t))
	}
	_, err := w.clients[0].CoreV1().ResourceQuotas(w.namespace).Create(ctx, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "quota"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			counted: *resource.NewQuantity(int64(limit), resource.DecimalSI), "count/podtemplates": resource.MustParse("0"),
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Every replica knows the quota when none of many tries over each gateway gets through.
	const inARow = 10
	for _, gateway := range gateways {
		admin, refused := gateway.Admin(t), 0
		framework.Eventually(t, "the quota", func() error {
			answer, err := admin.TrySend("POST", "/api/v1/namespaces/"+w.namespace+"/podtemplates?dryRun=All",
				"{apiVersion: v1, kind: PodTemplate, metadata: {name: none}, template: {spec: {containers: [{name: main, image: i}]}}}")
			switch {
			case err != nil:
				return err
			case !strings.Contains(string(answer.Body), "exceeded quota"):
				refused = 0
				return fmt.Errorf("is not in force: %s", answer.Body)
			}
			if refused++; refused < inARow {
				return fmt.Errorf("refused %d in a row, want %d", refused, inARow)
			}
			return nil
		})
	}
	w.write(t)
	return w
}

// write has all writers begin.
func (w *crowd) write(t *testing.T) {
	t.Helper()
	for i := range writers {
		client := w.clients[i%len(w.clients)]
		w.done.Go(func() {
			if err := w.fill(client); err != nil {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.errs = append(w.errs, err)
			}
		})
	}
}

// fill makes Secrets until the quota is exceeded. A write that was not decided is tried
// again under its name, which must then be free.
func (w *crowd) fill(client kubernetes.Interface) error {
	secrets := client.CoreV1().Secrets(w.namespace)
	for w.ctx.Err() == nil {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s-%d", w.names.Add(1))}}
		for {
			_, err := secrets.Create(w.ctx, secret, metav1.CreateOptions{})
			switch {
			case err == nil:
				w.made.Add(1)
			case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota: quota"):
				return nil
			case notDecided(err):
				continue
			default:
				return fmt.Errorf("%s: %w", secret.Name, err)
			}
			break
		}
	}
	return w.ctx.Err()
}

// notDecided says whether a write did not happen and may be tried again: the service
// was away, or it has lost against other replicas that count, or has had no time.
func notDecided(err error) bool {
	return apierrors.IsServiceUnavailable(err) || apierrors.IsConflict(err) ||
		apierrors.IsInternalError(err) && strings.Contains(err.Error(), "resource quota evaluation timed out")
}

// wait waits for the end of all writers, none of which may fail.
func (w *crowd) wait(t *testing.T) {
	t.Helper()
	w.done.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := errors.Join(w.errs...); err != nil {
		t.Fatal(err)
	}
}

// awaitMade waits until so many Secrets are made.
func (w *crowd) awaitMade(t *testing.T, count int) {
	t.Helper()
	framework.Eventually(t, fmt.Sprintf("%d Secrets", count), func() error {
		if made := int(w.made.Load()); made < count {
			return fmt.Errorf("%d are made", made)
		}
		return nil
	})
}

// wantMade wants so many Secrets, or at most so many if count is negative. Each was
// acknowledged to its writer.
func (w *crowd) wantMade(t *testing.T, count int) {
	t.Helper()
	list, err := w.clients[0].CoreV1().Secrets(w.namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := len(list.Items)
	t.Logf("%d writers made %d Secrets of %d", writers, got, w.limit)
	if got != count && count >= 0 || got > w.limit {
		t.Errorf("there are %d Secrets, want %d", got, count)
	}
	if acknowledged := int(w.made.Load()); got != acknowledged {
		t.Errorf("there are %d Secrets, and %d were acknowledged", got, acknowledged)
	}
}

// countAnew has the controller count what there is. It does when what a quota limits
// changes.
func (w *crowd) countAnew(t *testing.T) {
	t.Helper()
	quotas := w.clients[0].CoreV1().ResourceQuotas(w.namespace)
	made := w.made.Load()
	framework.Eventually(t, "a new count", func() error {
		quota, err := quotas.Get(t.Context(), "quota", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if used := quota.Status.Used[counted]; used.Value() == made {
			return nil
		}
		podTemplates := quota.Spec.Hard["count/podtemplates"]
		podTemplates.Add(resource.MustParse("1"))
		quota.Spec.Hard["count/podtemplates"] = podTemplates
		_, err = quotas.Update(t.Context(), quota, metav1.UpdateOptions{})
		return errors.Join(errors.New("is asked for"), err)
	})
	// All replicas have seen it when it is some time old; until then they count by what
	// they have, which is more.
	framework.EventuallyWithin(t, 10*time.Second, "a write by each gateway", func() error {
		for _, client := range w.clients {
			probe := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}
			if _, err := client.CoreV1().Secrets(w.namespace).Create(t.Context(), probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil && made < int64(w.limit) {
				return err
			}
		}
		return nil
	})
}
