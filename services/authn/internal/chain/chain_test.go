package chain

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-base/metrics/legacyregistry"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/trigate/trigate/services/authn/internal/authntest"
	"github.com/trigate/trigate/services/internal/rpcerr"
	"github.com/trigate/trigate/services/internal/servetest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		// Upstream keeps the authenticators of a replaced configuration for a
		// minute, and half a minute more for their metrics.
		goleak.IgnoreAnyFunction("k8s.io/kubernetes/pkg/kubeapiserver/authenticator.(*authenticationConfigUpdater).updateAuthenticationConfig.func2"),
	)
}

// captured runs upstream's request authenticators around a token authenticator
// that keeps what it is asked.
func captured(request *http.Request) []string {
	var tokens []string
	keep := authenticator.TokenFunc(func(_ context.Context, token string) (*authenticator.Response, bool, error) {
		tokens = append(tokens, token)
		return nil, false, nil
	})
	// Whoever it is, it is nobody.
	_, _, _ = union.New(bearertoken.New(keep), websocket.NewProtocolAuthenticator(keep)).AuthenticateRequest(request)
	return tokens
}

var oddTokens = []string{
	"token", "a b", " a", "a ", "a\nb", "\n", " ", "\t", "a\x00b", "ü", "\u2028", "\ufeffx", "Bearer x",
	"\xff", "\xff ", " \xff", "\xff\n", "\xffa b", "a,b", "=", strings.Repeat("x", 1<<20),
}

// TestRequestCarriesExactlyTheToken holds requestWith to its word: upstream reads
// the token from the request, and nothing else.
func TestRequestCarriesExactlyTheToken(t *testing.T) {
	for _, token := range oddTokens {
		checkRequest(t, token)
	}
	if requestWith("") != nil {
		t.Error("requestWith of no token is a request")
	}
}

func FuzzRequestCarriesExactlyTheToken(f *testing.F) {
	for _, token := range oddTokens[:len(oddTokens)-1] {
		f.Add(token)
	}
	f.Fuzz(func(t *testing.T, token string) { checkRequest(t, token) })
}

func checkRequest(t *testing.T, token string) {
	t.Helper()
	short := token[:min(len(token), 40)]
	request := requestWith(token)
	if request == nil {
		// Then no request can carry it: the header is the only other place.
		for _, got := range captured(headerRequest(token)) {
			if got == token {
				t.Errorf("requestWith(%q) is nil, but a header can carry it", short)
			}
		}
		return
	}
	if got := captured(request); len(got) != 1 || got[0] != token {
		t.Errorf("upstream reads %.40q from requestWith(%q)", got, short)
	}
}

func TestTokenOfAnotherAuthenticator(t *testing.T) {
	if _, err := tokenOf(nil, nil); err == nil {
		t.Error("tokenOf(nil, nil) gives no error")
	}
	if _, err := tokenOf(bearertoken.New(nil), nil); err == nil {
		t.Error("tokenOf(no group adder) gives no error")
	}
}

// TestTokenOfTellsUnrecognisedFromRefused is about the errors in which upstream's
// request authenticators say both.
func TestTokenOfTellsUnrecognisedFromRefused(t *testing.T) {
	refusal := errors.New("refused")
	inner := authenticator.TokenFunc(func(_ context.Context, token string) (*authenticator.Response, bool, error) {
		switch {
		case strings.HasPrefix(token, "good"):
			return &authenticator.Response{User: &user.DefaultInfo{Name: "u"}}, true, nil
		case strings.HasPrefix(token, "refused"):
			return nil, false, refusal
		case strings.HasPrefix(token, "same-words"):
			return nil, false, errors.New("invalid bearer token")
		}
		return nil, false, nil
	})
	tokens, err := tokenOf(group.NewAuthenticatedGroupAdder(union.New(bearertoken.New(inner), websocket.NewProtocolAuthenticator(inner))), &lifetimes{})
	if err != nil {
		t.Fatalf("tokenOf() = %v, want no error", err)
	}
	for _, suffix := range []string{"", "\xff"} { // in either place of a request
		response, ok, err := tokens.AuthenticateToken(t.Context(), "good"+suffix)
		if err != nil || !ok || len(response.User.GetGroups()) != 0 {
			t.Errorf("AuthenticateToken(good) = %v, %v, %v, want a user without groups", response, ok, err)
		}
		if _, ok, err := tokens.AuthenticateToken(t.Context(), "refused"+suffix); ok || !errors.Is(err, refusal) {
			t.Errorf("AuthenticateToken(refused) = %v, %v, want the refusal", ok, err)
		}
		if _, ok, err := tokens.AuthenticateToken(t.Context(), "unknown"+suffix); ok || err != nil {
			t.Errorf("AuthenticateToken(unknown) = %v, %v, want false, nil", ok, err)
		}
		if _, ok, err := tokens.AuthenticateToken(t.Context(), "same-words"+suffix); ok || err == nil {
			t.Errorf("AuthenticateToken(same-words) = %v, %v, want false and an error", ok, err)
		}
	}
}

const issuer = "https://issuer.example.com"

// start builds a chain with a service account, and runs its informers.
func start(t *testing.T, configFile string, objects ...runtime.Object) (authenticator.Token, *fake.Clientset, authntest.Key) {
	t.Helper()
	key := authntest.NewRSAKey(t)
	tokens, kubernetes := startWith(t, key, func(o *kubeoptions.BuiltInAuthenticationOptions) {
		o.AuthenticationConfigFile = configFile
	}, objects...)
	return tokens, kubernetes, key
}

// startWith does so with a key, and with options that change has set.
func startWith(t *testing.T, key authntest.Key, change func(*kubeoptions.BuiltInAuthenticationOptions), objects ...runtime.Object) (authenticator.Token, *fake.Clientset) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(stop)
	public, err := serviceaccount.StaticPublicKeysGetter([]any{key.Private.Public()})
	if err != nil {
		t.Fatal(err)
	}
	options := NewOptions()
	options.ServiceAccounts.Issuers = []string{issuer}
	options.ServiceAccounts.KeyFiles = []string{"not read"}
	if change != nil {
		change(options)
	}
	kubernetes := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(kubernetes, 0)
	tokens, err := New(ctx, Config{Options: options, PublicKeys: public, Client: kubernetes, Informers: factory, ServerID: "test"})
	if err != nil {
		t.Fatalf("New() = %v, want no error", err)
	}
	if len(options.ServiceAccounts.KeyFiles) != 1 || options.ServiceAccounts.ExternalPublicKeysGetter != nil {
		t.Error("New() changed the options")
	}
	factory.Start(ctx.Done())
	t.Cleanup(func() { stop(); factory.Shutdown() })
	factory.WaitForCacheSync(ctx.Done())
	return tokens, kubernetes
}

func account(name string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "uid"}}
}

// TestLookupsThatFail has the API fail for what the informers do not have: that
// is no verdict, whereas upstream takes it for one.
func TestLookupsThatFail(t *testing.T) {
	tokens, kubernetes, key := start(t, "", account("cart"))
	private := map[string]any{"pod": map[string]any{"name": "p", "uid": "pu"}}
	token := authntest.Sign(t, key, "", authntest.ServiceAccountClaims(issuer, "shop", "cart", "uid", []string{issuer}, private))

	_, ok, err := tokens.AuthenticateToken(t.Context(), token)
	if ok || err == nil || rpcerr.IsCouldNotDecide(err) {
		t.Fatalf("AuthenticateToken(missing pod) = %v, %v, want a refusal", ok, err)
	}
	for name, outage := range map[string]error{
		"unavailable": apierrors.NewServiceUnavailable("down"),
		"forbidden":   apierrors.NewForbidden(corev1.Resource("pods"), "p", errors.New("no")),
		"timeout":     context.DeadlineExceeded,
	} {
		t.Run(name, func(t *testing.T) {
			kubernetes.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, outage
			})
			_, ok, err := tokens.AuthenticateToken(t.Context(), token)
			if e, is := rpcerr.As(err); ok || !is || e.Reason != rpcerr.ReasonPeerUnreachable || !errors.Is(err, outage) {
				t.Errorf("AuthenticateToken() = %v, %v, want PeerUnreachable for %v", ok, err, outage)
			}
		})
	}
}

// TestRevocationIsNotCached has a service account deleted: as soon as the informer
// knows, its token is bad.
func TestRevocationIsNotCached(t *testing.T) {
	tokens, kubernetes, key := start(t, "", account("cart"))
	token := authntest.Sign(t, key, "", authntest.ServiceAccountClaims(issuer, "shop", "cart", "uid", []string{issuer}, nil))
	if _, ok, err := tokens.AuthenticateToken(t.Context(), token); !ok {
		t.Fatalf("AuthenticateToken() = %v, %v, want true", ok, err)
	}
	if err := kubernetes.CoreV1().ServiceAccounts("shop").Delete(t.Context(), "cart", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deleted := time.Now()
	servetest.Eventually(t, func() error {
		if _, ok, _ := tokens.AuthenticateToken(t.Context(), token); ok {
			return errors.New("the token is still good")
		}
		return nil
	})
	if elapsed := time.Since(deleted); elapsed > 5*time.Second {
		t.Errorf("the token was good for %s after the deletion; is there a cache?", elapsed)
	}
}

// TestInformersKeepOnlyTokens looks into the memory of the process.
func TestInformersKeepOnlyTokens(t *testing.T) {
	managed := []metav1.ManagedFieldsEntry{{Manager: "m"}}
	for name, c := range map[string]struct{ object, want runtime.Object }{
		"pod": {
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u", Labels: map[string]string{"a": "b"}, ManagedFields: managed}, Spec: corev1.PodSpec{NodeName: "n"}},
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}},
		},
		"secret": {
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.key": []byte("secret")}, StringData: map[string]string{"x": "secret"}},
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Type: corev1.SecretTypeTLS},
		},
		"service-account token": {
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", Labels: map[string]string{"a": "b"}}, Type: corev1.SecretTypeServiceAccountToken, Data: map[string][]byte{"token": []byte("t"), "ca.crt": []byte("c")}},
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", Labels: map[string]string{"a": "b"}}, Type: corev1.SecretTypeServiceAccountToken, Data: map[string][]byte{"token": []byte("t")}},
		},
		"bootstrap token": {
			&corev1.Secret{Type: "bootstrap.kubernetes.io/token", ObjectMeta: metav1.ObjectMeta{ManagedFields: managed}, Data: map[string][]byte{"token-id": []byte("t")}},
			&corev1.Secret{Type: "bootstrap.kubernetes.io/token", Data: map[string][]byte{"token-id": []byte("t")}},
		},
		"service account": {
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{ManagedFields: managed}, Secrets: []corev1.ObjectReference{{Name: "s"}}},
			&corev1.ServiceAccount{Secrets: []corev1.ObjectReference{{Name: "s"}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := trimObject(c.object)
			if err != nil {
				t.Fatalf("trimObject() = %v, want no error", err)
			}
			if !equality.Semantic.DeepEqual(got, c.want) {
				t.Errorf("trimObject(%v) = %v, want %v", c.object, got, c.want)
			}
			again, err := trimObject(got)
			if err != nil || !equality.Semantic.DeepEqual(again, c.want) {
				t.Errorf("trimObject of a trimmed object = %v, %v, want %v", again, err, c.want)
			}
		})
	}
}

func writeConfig(t testing.TB, path string, jwt string) {
	t.Helper()
	servetest.WriteFile(t, path, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"+jwt))
}

// TestConfigurationFileIsReloaded has an issuer come and go, with a file between
// that cannot be used.
func TestConfigurationFileIsReloaded(t *testing.T) {
	key := authntest.NewRSAKey(t)
	provider := authntest.NewIssuer(t, key, "k")
	path := filepath.Join(t.TempDir(), "authentication.yaml")
	writeConfig(t, path, "jwt:\n- issuer: {url: "+provider.URL+", audiences: [a], certificateAuthority: "+quoted(provider.CAPEM)+"}\n  claimMappings: {username: {claim: sub, prefix: ''}}\n")
	tokens, _, _ := start(t, path)
	token := authntest.Sign(t, key, "k", authntest.Claims{"iss": provider.URL, "aud": "a", "sub": "jane", "exp": time.Now().Add(time.Hour).Unix()})
	is := func(good bool) error {
		_, ok, err := tokens.AuthenticateToken(t.Context(), token)
		if ok != good {
			return errors.Join(errors.New("the token's verdict is not the expected one"), err)
		}
		return nil
	}
	servetest.Eventually(t, func() error { return is(true) })

	writeConfig(t, path, "jwt: [{issuer: {url: 'http://not-https'}}]\n")
	servetest.Eventually(t, func() error { return reloadsFailed() })
	if err := is(true); err != nil {
		t.Errorf("after a file that cannot be used: %v", err)
	}

	writeConfig(t, path, "jwt: []\n")
	servetest.Eventually(t, func() error { return is(false) })
}

func quoted(pem []byte) string {
	return `"` + strings.ReplaceAll(string(pem), "\n", `\n`) + `"`
}

// reloadsFailed returns nil once upstream's metric says that a reload failed.
func reloadsFailed() error {
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		return err
	}
	for _, family := range families {
		if family.GetName() != "apiserver_authentication_config_controller_automatic_reloads_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if label.GetName() == "status" && label.GetValue() == "failure" && m.GetCounter().GetValue() > 0 {
					return nil
				}
			}
		}
	}
	return errors.New("no reload failed yet")
}

func TestConfigurationThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"missing":     "",
		"no YAML":     "\t",
		"other kind":  "apiVersion: v1\nkind: Pod\n",
		"other field": "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwts: []\n",
		"no issuer":   "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt: [{}]\n",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			if content != "" {
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			options := NewOptions()
			options.ServiceAccounts.Issuers = []string{issuer}
			options.AuthenticationConfigFile = path
			kubernetes := fake.NewClientset()
			if _, err := New(t.Context(), Config{Options: options, Client: kubernetes, Informers: informers.NewSharedInformerFactory(kubernetes, 0)}); err == nil {
				t.Error("New() gives no error")
			}
		})
	}
}
