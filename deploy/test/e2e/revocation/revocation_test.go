// Package revocation tests when a token ends whose object is deleted: for the very next
// request through the gateway that acknowledged the deletion, and within a moment through
// another one.
package revocation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

const (
	// rounds are of create, use, delete, use, for each kind of object.
	rounds = 200
	// crowd is how many others show the token all the while.
	crowd = 2
	// path is one that everybody may read who is somebody.
	path      = "/api"
	namespace = "revocation"
)

// TestDeletedObjects deletes in turn all that a token may hang on.
func TestDeletedObjects(t *testing.T) {
	c := framework.StartTrigate(t, framework.TrigateOptions{Args: []string{"--gateways=2", "--replicas=2", "--controllers=false"}})
	s := newStage(t, c)
	for name, bearer := range bearers {
		t.Run(name, func(t *testing.T) {
			var lags []time.Duration
			for round := range rounds {
				lags = append(lags, s.round(t, bearer, fmt.Sprintf("%s-%d", strings.ReplaceAll(name, " ", "-"), round)))
			}
			slices.Sort(lags)
			at := func(share float64) time.Duration { return lags[int(share*float64(len(lags)-1))] }
			t.Logf("a token lived on at the second gateway: median %s, 90%% %s, 99%% %s, longest %s, of %d",
				at(0.5), at(0.9), at(0.99), at(1), len(lags))
		})
	}
	// Had nothing been kept, there would have been nothing to revoke.
	metrics := c.Admin(t).Send(t, http.MethodGet, "/metrics", "").Want(t, http.StatusOK)
	hits := regexp.MustCompile(`(?m)^authentication_token_cache_request_total\{status="hit"\} (\S+)$`).FindSubmatch(metrics.Body)
	if hits == nil {
		t.Fatal("the gateway has no metric of its cache")
	}
	t.Logf("%s requests were answered from the first gateway's cache", hits[1])
	if n, err := strconv.ParseFloat(string(hits[1]), 64); err != nil || n < rounds {
		t.Errorf("%s requests were answered from the cache, want more than there are rounds", hits[1])
	}
}

// bearer makes a token that hangs on an object, and deletes the object. A name is used
// once.
type bearer struct {
	token  func(ctx context.Context, core corev1client.CoreV1Interface, name string) (string, error)
	delete func(ctx context.Context, core corev1client.CoreV1Interface, name string) error
}

// bound is a bearer with a token of a service account of its own that is bound to an
// object.
func bound(
	create func(ctx context.Context, core corev1client.CoreV1Interface, name string) (authenticationv1.BoundObjectReference, error),
	remove func(ctx context.Context, core corev1client.CoreV1Interface, name string) error,
) bearer {
	return bearer{token: func(ctx context.Context, core corev1client.CoreV1Interface, name string) (string, error) {
		token, err := accountToken(ctx, core, name, nil)
		if err != nil {
			return token, err
		}
		to, err := create(ctx, core, name)
		if err != nil {
			return "", err
		}
		to.APIVersion, to.Name = "v1", name
		return tokenOf(ctx, core, name, &to)
	}, delete: remove}
}

// boundToPod is a bearer with a token that is bound to a Pod on a node, or on none.
func boundToPod(node string) bearer {
	return bound(
		func(ctx context.Context, core corev1client.CoreV1Interface, name string) (authenticationv1.BoundObjectReference, error) {
			made, err := core.Pods(namespace).Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: corev1.PodSpec{
					ServiceAccountName: name,
					NodeName:           node,
					Containers:         []corev1.Container{{Name: "c", Image: "example.com/none"}},
				},
			}, metav1.CreateOptions{})
			if err != nil {
				return authenticationv1.BoundObjectReference{}, err
			}
			return authenticationv1.BoundObjectReference{Kind: "Pod", UID: made.UID}, nil
		},
		func(ctx context.Context, core corev1client.CoreV1Interface, name string) error {
			// No kubelet is there to end it.
			return core.Pods(namespace).Delete(ctx, name, *metav1.NewDeleteOptions(0))
		},
	)
}

func accountToken(ctx context.Context, core corev1client.CoreV1Interface, name string, to *authenticationv1.BoundObjectReference) (string, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := core.ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	return tokenOf(ctx, core, name, to)
}

func tokenOf(ctx context.Context, core corev1client.CoreV1Interface, name string, to *authenticationv1.BoundObjectReference) (string, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: to}}
	answer, err := core.ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return answer.Status.Token, nil
}

var bearers = map[string]bearer{
	"service account": {
		token: func(ctx context.Context, core corev1client.CoreV1Interface, name string) (string, error) {
			return accountToken(ctx, core, name, nil)
		},
		delete: func(ctx context.Context, core corev1client.CoreV1Interface, name string) error {
			return core.ServiceAccounts(namespace).Delete(ctx, name, metav1.DeleteOptions{})
		},
	},
	"secret": bound(
		func(ctx context.Context, core corev1client.CoreV1Interface, name string) (authenticationv1.BoundObjectReference, error) {
			made, err := core.Secrets(namespace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			if err != nil {
				return authenticationv1.BoundObjectReference{}, err
			}
			return authenticationv1.BoundObjectReference{Kind: "Secret", UID: made.UID}, nil
		},
		func(ctx context.Context, core corev1client.CoreV1Interface, name string) error {
			return core.Secrets(namespace).Delete(ctx, name, metav1.DeleteOptions{})
		},
	),
	"pod":             boundToPod("a-node"),
	"unscheduled pod": boundToPod(""),
	"node": bound(
		func(ctx context.Context, core corev1client.CoreV1Interface, name string) (authenticationv1.BoundObjectReference, error) {
			made, err := core.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			if err != nil {
				return authenticationv1.BoundObjectReference{}, err
			}
			return authenticationv1.BoundObjectReference{Kind: "Node", UID: made.UID}, nil
		},
		func(ctx context.Context, core corev1client.CoreV1Interface, name string) error {
			return core.Nodes().Delete(ctx, name, metav1.DeleteOptions{})
		},
	),
	"bootstrap token": {
		token: func(ctx context.Context, core corev1client.CoreV1Interface, name string) (string, error) {
			id := bootstrapID(name)
			_, err := core.Secrets(metav1.NamespaceSystem).Create(ctx, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id},
				Type:       "bootstrap.kubernetes.io/token",
				StringData: map[string]string{
					"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
				},
			}, metav1.CreateOptions{})
			return id + ".0123456789abcdef", err
		},
		delete: func(ctx context.Context, core corev1client.CoreV1Interface, name string) error {
			return core.Secrets(metav1.NamespaceSystem).Delete(ctx, "bootstrap-token-"+bootstrapID(name), metav1.DeleteOptions{})
		},
	},
}

// bootstrapID makes six letters of a round's number.
func bootstrapID(name string) string {
	return fmt.Sprintf("%06s", name[strings.LastIndex(name, "-")+1:])
}

// stage is who acts.
type stage struct {
	core corev1client.CoreV1Interface
	// client has no credentials of its own.
	client        *http.Client
	first, second string
}

func newStage(t *testing.T, c *framework.Cluster) *stage {
	t.Helper()
	gateways := c.Gateways(t)
	if len(gateways) != 2 {
		t.Fatalf("%d gateways, want 2", len(gateways))
	}
	s := &stage{
		core:   c.Client(t).CoreV1(),
		client: framework.HTTP(t, c.Anonymous(t)),
		first:  gateways[0].Config(t).Host + path,
		second: gateways[1].Config(t).Host + path,
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := s.core.Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return s
}

// isKnown reports whether a gateway knows the bearer of a token. An answer that is no
// verdict is asked for again, as client-go does.
func (s *stage) isKnown(ctx context.Context, url, token string) (bool, error) {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false, err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := s.client.Do(req)
		if err != nil {
			return false, err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			return false, err
		}
		switch resp.StatusCode {
		case http.StatusOK:
			return true, nil
		case http.StatusUnauthorized:
			return false, nil
		case http.StatusServiceUnavailable:
			if resp.Header.Get("Retry-After") == "" {
				return false, errors.New("503 without Retry-After")
			}
		default:
			return false, fmt.Errorf("got %s", resp.Status)
		}
	}
}

// await asks until the answer is what is wanted.
func (s *stage) await(ctx context.Context, url, token string, want bool) error {
	for {
		if got, err := s.isKnown(ctx, url, token); err != nil || got == want {
			return err
		}
	}
}

// round creates, uses, deletes and uses, and returns how long the token lived on at the
// second gateway. Others show it all the while, so that it is kept wherever it may be.
func (s *stage) round(t *testing.T, bearer bearer, name string) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), framework.Timeout)
	defer cancel()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %s: %v", name, what, err)
		}
	}
	token, err := bearer.token(ctx, s.core, name)
	must("making a token", err)
	// As in kube-apiserver, a bootstrap token is known when the informers know it.
	must("the token at the first gateway", s.await(ctx, s.first, token, true))
	must("the token at the second gateway", s.await(ctx, s.second, token, true))
	var deleting, deleted atomic.Bool
	var others errgroup.Group
	for range crowd {
		others.Go(func() error { return s.show(ctx, token, &deleting, &deleted) })
	}
	for range 3 {
		if known, err := s.isKnown(ctx, s.first, token); err != nil || !known {
			t.Fatalf("%s: the token is known = %v, %v before the deletion, want true", name, known, err)
		}
	}
	deleting.Store(true)
	must("deleting", bearer.delete(ctx, s.core, name))
	acknowledged := time.Now()
	deleted.Store(true)
	if known, err := s.isKnown(ctx, s.first, token); err != nil || known {
		t.Fatalf("%s: the token is known = %v, %v to the first request after the deletion, want false", name, known, err)
	}
	must("the deletion at the second gateway", s.await(ctx, s.second, token, false))
	lag := time.Since(acknowledged)
	must("the crowd", others.Wait())
	return lag
}

// show has the first gateway see the token until it was refused after the deletion.
func (s *stage) show(ctx context.Context, token string, deleting, deleted *atomic.Bool) error {
	for {
		after := deleted.Load()
		known, err := s.isKnown(ctx, s.first, token)
		switch {
		case err != nil:
			return err
		case known && after:
			return errors.New("a request that began after the deletion was let in")
		case !known && !deleting.Load():
			return errors.New("a request before the deletion was refused")
		case after:
			return nil
		}
	}
}
