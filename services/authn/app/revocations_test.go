package app

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trigate/trigate/services/authn/client"
	"github.com/trigate/trigate/services/authn/internal/authntest"
	"github.com/trigate/trigate/services/internal/apitest"
	"github.com/trigate/trigate/services/internal/servetest"
)

// news are the messages of a stream of revocations.
type news struct {
	t        *testing.T
	messages chan client.Revocations
}

// watchRevocations opens a stream, until the test ends.
func watchRevocations(t *testing.T, conn *client.Conn) *news {
	t.Helper()
	n := &news{t: t, messages: make(chan client.Revocations)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { // The cleanup waits for it.
		done <- client.NewToken(conn).WatchRevocations(ctx, func(r client.Revocations) {
			select {
			case n.messages <- r:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !client.IsCouldNotDecide(err) {
			t.Errorf("WatchRevocations() = %v, want an error for which IsCouldNotDecide holds", err)
		}
	})
	return n
}

// await returns the first message that is wanted.
func (n *news) await(what string, wanted func(client.Revocations) bool) client.Revocations {
	n.t.Helper()
	deadline := time.After(stopTimeout)
	var last client.Revocations
	for {
		select {
		case last = <-n.messages:
			if wanted(last) {
				return last
			}
		case <-deadline:
			n.t.Fatalf("%s is not told; the last message is %+v", what, last)
		}
	}
}

func (n *news) awaitFollowing(following bool) client.Revocations {
	n.t.Helper()
	return n.await(fmt.Sprintf("following: %v", following), func(r client.Revocations) bool { return r.Following == following })
}

func (n *news) awaitDeletion(name string) {
	n.t.Helper()
	n.await("the deletion of "+name, func(r client.Revocations) bool {
		return slices.ContainsFunc(r.Revoked, func(revoked client.Revocation) bool {
			return revoked.Object.Name == name && revoked.Object.UID == "uid-of-"+name && revoked.Deleted
		})
	})
}

// TestRevocations follows a stream while the API comes and goes.
func TestRevocations(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-0", UID: "uid-of-cart-0"}}
	cart := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "uid-of-cart"}}
	api := apitest.New(t, cart, account("late"), pod)
	conn := start(t, "--kubeconfig="+api.Kubeconfig(t)).gateway(t)
	stream := watchRevocations(t, conn)
	if first := stream.awaitFollowing(true); first.Configuration == "" {
		t.Error("the stream tells of no configuration")
	}
	token := issue(t, conn, "late", nil)
	judge := func() client.Verdict {
		t.Helper()
		verdict, err := client.NewToken(conn).Judge(t.Context(), token)
		if err != nil || verdict.Response == nil {
			t.Fatalf("Judge() = %+v, %v, want a good token", verdict, err)
		}
		return verdict
	}
	if kept := judge().Lifetime; kept.KeepUntil.IsZero() || len(kept.Dependencies) != 1 || kept.Dependencies[0].ResourceVersion == 0 {
		t.Errorf("a verdict has lifetime %+v, want one that may be kept and hangs on the account", kept)
	}
	api.Delete(t, pod)
	stream.awaitDeletion("cart-0")

	api.SetAvailable(false)
	stream.awaitFollowing(false)
	if kept := judge().Lifetime; !kept.KeepUntil.IsZero() {
		t.Errorf("a verdict may be kept until %s though the service does not follow", kept.KeepUntil)
	}
	api.Delete(t, cart)
	api.SetAvailable(true)
	stream.awaitDeletion("cart")
	stream.awaitFollowing(true)

	// Whoever comes late hears of it too.
	watchRevocations(t, conn).awaitDeletion("cart")
}

// TestConfigurationIsTold changes the keys and the configuration file.
func TestConfigurationIsTold(t *testing.T) {
	api := apitest.New(t, account("cart"))
	issuerKey, provider := authntest.NewRSAKey(t), (*authntest.Remote)(nil)
	provider = authntest.NewIssuer(t, issuerKey, "k")
	file := filepath.Join(t.TempDir(), "authentication.yaml")
	write := func(jwt string) {
		servetest.WriteFile(t, file, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"+jwt))
	}
	write("jwt: []\n")
	key, next := authntest.NewRSAKey(t), authntest.NewRSAKey(t)
	s := start(t, "--kubeconfig="+api.Kubeconfig(t), "--authentication-config="+file,
		"--service-account-signing-key-file="+key.PrivateFile, "--service-account-key-file="+key.PublicFile)
	stream := watchRevocations(t, s.gateway(t))
	last := stream.awaitFollowing(true).Configuration
	changed := func(what string) {
		t.Helper()
		last = stream.await(what, func(r client.Revocations) bool { return r.Configuration != last }).Configuration
	}
	servetest.WriteFile(t, key.PublicFile, slices.Concat(key.PublicPEM, next.PublicPEM))
	changed("another key")

	write("jwt: [{}]\n")
	awaitReadyz(t, s, "[+]authentication-config ok, but the content of "+file+" cannot be used, an older one is in force\n")

	write(fmt.Sprintf("jwt:\n- issuer: {url: %s, audiences: [a], certificateAuthority: %q}\n  claimMappings: {username: {claim: sub, prefix: ''}}\n", provider.URL, provider.CAPEM))
	changed("another issuer")
	awaitReadyz(t, s, "[+]authentication-config ok\n")
}

// awaitReadyz waits until the health, which stays good, says something.
func awaitReadyz(t *testing.T, s *service, want string) {
	t.Helper()
	servetest.Eventually(t, func() error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.metrics+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			return fmt.Errorf("/readyz is %s with %q, want %q in it", response.Status, body, want)
		}
		return response.Body.Close()
	})
}
