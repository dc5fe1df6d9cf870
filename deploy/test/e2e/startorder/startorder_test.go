// Package startorder tests that the processes of Trigate may start in any order, and
// any of them minutes after the others.
package startorder

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

// The parts, by the names that the local runner gives them.
const (
	etcd      = "etcd"
	authn     = "authn"
	authz     = "authz"
	admission = "admission"
	gateway   = "gateway"
)

var gates = []string{authn, authz, admission}

// soon is less than the minute after which the controller that makes the system
// namespaces tries again: its first attempt has to succeed.
const soon = 40 * time.Second

// endsWithin is how long the local runner waits before it kills a process.
const endsWithin = 20 * time.Second

// lookAgain is how often a state that has to last is looked at.
const lookAgain = 200 * time.Millisecond

// TestOneComesLate has one process come after the others have waited for it.
//
// What waits has no limit of its own, or one of minutes. But upstream has limits, and
// those are what a late process must outlast: storage gives up after 20 s without
// etcd, and hooks end the process when they could not write the bootstrap roles and
// priority classes within 30 s, or check the Services' addresses within a minute. A
// process that comes in 75 s finds all of these over, as one in two minutes would.
func TestOneComesLate(t *testing.T) {
	for _, test := range []struct {
		late string
		by   time.Duration
		// gateways is how many there are; 0 is one.
		gateways int
	}{
		// Two gateways wait, and then write the same objects at the same time.
		{late: admission, by: 75 * time.Second, gateways: 2},
		{late: authz, by: 35 * time.Second},
		{late: etcd, by: 25 * time.Second},
		{late: gateway, by: 10 * time.Second},
		{late: authn, by: 5 * time.Second},
	} {
		t.Run(test.late, func(t *testing.T) {
			t.Parallel()
			p := framework.NewParts(t, framework.PartsOptions{Gateways: test.gateways})
			others := slices.DeleteFunc(p.Names(), func(name string) bool { return name == test.late })
			p.Start(t, others...)
			begin := time.Now()
			framework.Eventually(t, "it is told what is missing", func() error {
				if err := p.Died(); err != nil {
					t.Fatal(err)
				}
				return saysWhatIsMissing(t, p, test.late)
			})
			stays(t, test.by-time.Since(begin), func() error {
				return errors.Join(p.Died(), notReady(t, p))
			})
			p.Start(t, test.late)
			p.AwaitReady(t)
			works(t, p)
			if err := p.Died(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestReversedOrder starts each process only when all that need it have found it
// missing.
func TestReversedOrder(t *testing.T) {
	t.Parallel()
	p := framework.NewParts(t, framework.PartsOptions{})
	p.Start(t, gateway)
	framework.Eventually(t, "the gateway misses etcd", func() error { return logged(t, p, gateway, "Waiting for etcd") })
	p.Start(t, admission, authz, authn)
	framework.Eventually(t, "the services miss the gateway", func() error { return saysWhatIsMissing(t, p, gateway) })
	p.Start(t, etcd)
	p.AwaitReady(t)
	works(t, p)
}

// TestEndWhileOthersAreMissing wants a process that waits for others to end when it is
// told to.
func TestEndWhileOthersAreMissing(t *testing.T) {
	t.Parallel()
	p := framework.NewParts(t, framework.PartsOptions{})
	p.Start(t, authn, authz, admission)
	framework.Eventually(t, "the services miss the gateway", func() error { return saysWhatIsMissing(t, p, gateway) })
	p.End(t, endsWithin, admission, authz, authn)

	p.Start(t, gateway)
	framework.Eventually(t, "the gateway misses etcd", func() error { return logged(t, p, gateway, "Waiting for etcd") })
	p.End(t, endsWithin, gateway)

	p.Start(t, etcd, gateway)
	framework.Eventually(t, "the gateway misses the gates", func() error {
		return errors.Join(
			logged(t, p, gateway, `"Waiting for a gate" gate="authn"`),
			logged(t, p, gateway, `"Waiting for a gate" gate="authz"`),
			logged(t, p, gateway, `"Waiting for a gate" gate="admission"`))
	})
	p.End(t, endsWithin, gateway, etcd)
}

// saysWhatIsMissing returns nil if those that are there say which part is not.
func saysWhatIsMissing(t *testing.T, p *framework.Parts, missing string) error {
	t.Helper()
	switch missing {
	case etcd:
		return errors.Join(
			logged(t, p, gateway, `"Waiting for etcd" servers="https://127.0.0.1:`),
			logged(t, p, gateway, "connection refused"))
	case gateway:
		var errs []error
		for _, gate := range gates {
			errs = append(errs, logged(t, p, gate, "Waiting for the Kubernetes API"))
		}
		return errors.Join(errs...)
	}
	report, err := p.Probe(t, "/readyz?verbose")
	if err == nil {
		return fmt.Errorf("/readyz is ok without %s", missing)
	}
	for _, gate := range gates {
		want := "[+]gate-" + gate + " ok"
		if gate == missing {
			want = "[-]gate-" + gate + " failed"
		}
		if !strings.Contains(report, want) {
			return fmt.Errorf("/readyz does not say %q: %w\n%s", want, err, report)
		}
	}
	if missing == admission {
		// What writes at the start is not lost, but still to come.
		if want := "[-]poststarthook/rbac/bootstrap-roles failed"; !strings.Contains(report, want) {
			return fmt.Errorf("/readyz does not say %q:\n%s", want, report)
		}
	}
	_, err = p.Probe(t, "/version")
	return err
}

// notReady returns an error if the gateway says that everything is ready.
func notReady(t *testing.T, p *framework.Parts) error {
	t.Helper()
	if report, err := p.Probe(t, "/readyz?verbose"); err == nil {
		return fmt.Errorf("/readyz is ok though a part is missing:\n%s", report)
	}
	return nil
}

// logged returns an error as long as a part has not logged text.
func logged(t *testing.T, p *framework.Parts, name, text string) error {
	t.Helper()
	if !strings.Contains(p.Log(t, name), text) {
		return fmt.Errorf("%s has not logged %q", name, text)
	}
	return p.Died()
}

// stays fails unless check returns nil all the time.
func stays(t *testing.T, how time.Duration, check func() error) {
	t.Helper()
	end := time.After(how)
	ticker := time.NewTicker(lookAgain)
	defer ticker.Stop()
	for {
		if err := check(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-end:
			return
		case <-ticker.C:
		}
	}
}

// works tests that what the start had to write is there, and that each gate does its
// work.
func works(t *testing.T, p *framework.Parts) {
	t.Helper()
	ctx := t.Context()
	admin := p.Client(t)
	for _, name := range []string{"cluster-admin", "admin", "edit", "view", "system:discovery"} {
		if _, err := admin.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{}); err != nil {
			t.Errorf("bootstrap role: %v", err)
		}
	}
	if _, err := admin.RbacV1().RoleBindings("kube-system").Get(ctx, "system::extension-apiserver-authentication-reader", metav1.GetOptions{}); err != nil {
		t.Errorf("bootstrap binding: %v", err)
	}
	for _, name := range []string{"system-node-critical", "system-cluster-critical"} {
		if _, err := admin.SchedulingV1().PriorityClasses().Get(ctx, name, metav1.GetOptions{}); err != nil {
			t.Errorf("priority class: %v", err)
		}
	}

	// authn signs a token and knows its bearer, whom authz lets do nothing else. A
	// controller makes the namespace, which may be a little later than ready.
	framework.EventuallyWithin(t, soon, "a write", func() error {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "ann"}}
		_, err := admin.CoreV1().ServiceAccounts("default").Create(ctx, account, metav1.CreateOptions{})
		return err
	})
	ann := framework.ClientFor(t, p.Token(t, p.ServiceAccountToken(t, "default", "ann")))
	// authn knows the account as soon as it has seen it.
	framework.Eventually(t, "a token's bearer", func() error {
		review, err := ann.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if got, want := review.Status.UserInfo.Username, "system:serviceaccount:default:ann"; got != want {
			return fmt.Errorf("is %q, want %q", got, want)
		}
		return nil
	})
	if _, err := ann.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("listing Secrets without a right = %v, want it forbidden", err)
	}
	// admission refuses what has no namespace.
	lost := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "lost"}}
	if _, err := admin.CoreV1().ConfigMaps("nowhere").Create(ctx, lost, metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("creating a ConfigMap in no namespace = %v, want that the namespace is not found", err)
	}
}
