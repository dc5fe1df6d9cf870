package chain

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	clienttesting "k8s.io/client-go/testing"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/trigate/trigate/services/authn/internal/authntest"
	"github.com/trigate/trigate/services/authn/internal/convert"
	"github.com/trigate/trigate/services/internal/servetest"
)

// lifetimeOf has a good token judged.
func lifetimeOf(t *testing.T, tokens authenticator.Token, token string) convert.Lifetime {
	t.Helper()
	ctx, lifetime := WithLifetime(t.Context())
	if _, ok, err := tokens.AuthenticateToken(ctx, token); !ok || err != nil {
		t.Fatalf("AuthenticateToken() = %v, %v, want true", ok, err)
	}
	return *lifetime
}

// wantKept checks until when a verdict may be kept, to a few seconds.
func wantKept(t *testing.T, what string, got convert.Lifetime, want time.Duration) {
	t.Helper()
	var left time.Duration
	if !got.KeepUntil.IsZero() {
		left = time.Until(got.KeepUntil)
	}
	if left > want || left < want-5*time.Second {
		t.Errorf("%s: the verdict may be kept for %s, want %s", what, left, want)
	}
}

func meta(name, version string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "uid", ResourceVersion: version}
}

// TestLifetimeOfServiceAccountTokens has tokens that hang on objects.
func TestLifetimeOfServiceAccountTokens(t *testing.T) {
	deletion := metav1.NewTime(time.Now())
	ending := &corev1.Pod{ObjectMeta: meta("ending", "5")}
	ending.DeletionTimestamp, ending.Finalizers = &deletion, []string{"example.com/wait"}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "uid", ResourceVersion: "4"}}
	tokens, kubernetes, key := start(t, "", &corev1.ServiceAccount{ObjectMeta: meta("cart", "1")},
		&corev1.Pod{ObjectMeta: meta("cart-0", "2")}, &corev1.Secret{ObjectMeta: meta("bound", "3")}, node, ending)
	ref := func(name string) map[string]any { return map[string]any{"name": name, "uid": "uid"} }
	object := func(resource, name string, version uint64) convert.Object {
		return convert.Object{Resource: resource, Namespace: "shop", Name: name, UID: "uid", ResourceVersion: version}
	}
	account := object(convert.ServiceAccounts, "cart", 1)
	now := time.Now()
	for name, c := range map[string]struct {
		private map[string]any
		expiry  time.Duration
		want    []convert.Object
		keep    time.Duration
	}{
		"unbound":          {nil, time.Hour, []convert.Object{account}, keepKnown},
		"ends soon":        {nil, time.Minute, []convert.Object{account}, time.Minute},
		"of a pod":         {map[string]any{"pod": ref("cart-0"), "node": ref("gone")}, time.Hour, []convert.Object{account, object(convert.Pods, "cart-0", 2)}, keepKnown},
		"of a secret":      {map[string]any{"secret": ref("bound")}, time.Hour, []convert.Object{account, object(convert.Secrets, "bound", 3)}, keepKnown},
		"of a node":        {map[string]any{"node": ref("node-1")}, time.Hour, []convert.Object{account, {Resource: convert.Nodes, Name: "node-1", UID: "uid", ResourceVersion: 4}}, keepKnown},
		"of an ending pod": {map[string]any{"pod": ref("ending")}, time.Hour, []convert.Object{account, object(convert.Pods, "ending", 5)}, 0},
		"stale":            {map[string]any{"warnafter": now.Add(-time.Minute).Unix()}, time.Hour, []convert.Object{account}, keepUnknown},
		"stale soon":       {map[string]any{"warnafter": now.Add(2 * time.Minute).Unix()}, time.Hour, []convert.Object{account}, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			claims := authntest.ServiceAccountClaims(issuer, "shop", "cart", "uid", []string{issuer}, c.private)
			got := lifetimeOf(t, tokens, authntest.Sign(t, key, "", claims.With("exp", now.Add(c.expiry).Unix())))
			if diff := cmp.Diff(c.want, got.Dependencies); diff != "" {
				t.Errorf("dependencies (-want +got):\n%s", diff)
			}
			wantKept(t, name, got, c.keep)
		})
	}

	// What the informers have not got they will not tell the end of.
	kubernetes.PrependReactor("get", "serviceaccounts", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &corev1.ServiceAccount{ObjectMeta: meta("new", "9")}, nil
	})
	claims := authntest.ServiceAccountClaims(issuer, "shop", "new", "uid", []string{issuer}, nil)
	wantKept(t, "not in the informers", lifetimeOf(t, tokens, authntest.Sign(t, key, "", claims)), 0)
}

// TestLifetimeOfLegacyTokens has a token that is kept in a secret.
func TestLifetimeOfLegacyTokens(t *testing.T) {
	key := authntest.NewRSAKey(t)
	token := authntest.Sign(t, key, "", authntest.Claims{
		"iss":                                    serviceaccount.LegacyIssuer,
		"sub":                                    "system:serviceaccount:shop:cart",
		"kubernetes.io/serviceaccount/namespace": "shop",
		"kubernetes.io/serviceaccount/secret.name":          "kept",
		"kubernetes.io/serviceaccount/service-account.name": "cart",
		"kubernetes.io/serviceaccount/service-account.uid":  "uid",
	})
	secret := &corev1.Secret{ObjectMeta: meta("kept", "7"), Type: corev1.SecretTypeServiceAccountToken, Data: map[string][]byte{"token": []byte(token)}}
	secret.UID = "uid-of-secret"
	tokens, _ := startWith(t, key, nil, secret, &corev1.ServiceAccount{ObjectMeta: meta("cart", "1")})
	got := lifetimeOf(t, tokens, token)
	want := []convert.Object{
		{Resource: convert.Secrets, Namespace: "shop", Name: "kept", UID: "uid-of-secret", ResourceVersion: 7},
		{Resource: convert.ServiceAccounts, Namespace: "shop", Name: "cart", UID: "uid", ResourceVersion: 1},
	}
	if diff := cmp.Diff(want, got.Dependencies); diff != "" {
		t.Errorf("dependencies (-want +got):\n%s", diff)
	}
	wantKept(t, "legacy", got, keepKnown)

	// Without a look-up nobody knows what the token hangs on.
	unchecked, _ := startWith(t, key, func(o *kubeoptions.BuiltInAuthenticationOptions) { o.ServiceAccounts.Lookup = false })
	wantKept(t, "without look-up", lifetimeOf(t, unchecked, token), 0)
}

func TestLifetimeOfBootstrapTokens(t *testing.T) {
	secret := func(id string, expiration time.Duration) *corev1.Secret {
		s := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id, UID: "uid", ResourceVersion: "3"},
			Type:       bootstrapapi.SecretTypeBootstrapToken,
			Data: map[string][]byte{
				"token-id": []byte(id), "token-secret": []byte("0123456789abcdef"), "usage-bootstrap-authentication": []byte("true"),
			},
		}
		if expiration != 0 {
			s.Data["expiration"] = []byte(time.Now().Add(expiration).UTC().Format(time.RFC3339))
		}
		return s
	}
	tokens, _ := startWith(t, authntest.NewRSAKey(t), func(o *kubeoptions.BuiltInAuthenticationOptions) { o.BootstrapToken.Enable = true },
		secret("aaaaaa", 0), secret("bbbbbb", 2*time.Minute), secret("cccccc", time.Hour))
	for id, want := range map[string]time.Duration{"aaaaaa": keepKnown, "bbbbbb": 2 * time.Minute, "cccccc": keepKnown} {
		got := lifetimeOf(t, tokens, id+".0123456789abcdef")
		object := convert.Object{Resource: convert.Secrets, Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id, UID: "uid", ResourceVersion: 3}
		if diff := cmp.Diff([]convert.Object{object}, got.Dependencies); diff != "" {
			t.Errorf("dependencies (-want +got):\n%s", diff)
		}
		wantKept(t, id, got, want)
	}
}

// TestLifetimeOfOtherTokens has tokens that hang on no object.
func TestLifetimeOfOtherTokens(t *testing.T) {
	key := authntest.NewRSAKey(t)
	file := filepath.Join(t.TempDir(), "tokens.csv")
	servetest.WriteFile(t, file, []byte("from-file,alice,1\n"))
	provider := authntest.NewIssuer(t, key, "k")
	withIssuer := func(o *kubeoptions.BuiltInAuthenticationOptions) {
		o.TokenFile.TokenFile = file
		o.OIDC.IssuerURL, o.OIDC.ClientID, o.OIDC.CAFile = provider.URL, "a", provider.CAFile
	}
	_, webhook := authntest.NewWebhook(t, func(authenticationv1.TokenReviewSpec) authenticationv1.TokenReviewStatus {
		return authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "hooked"}}
	})
	withWebhook := func(o *kubeoptions.BuiltInAuthenticationOptions) {
		withIssuer(o)
		o.WebHook.ConfigFile, o.WebHook.Version = webhook, "v1"
	}
	of := func(expiry time.Duration) string {
		return authntest.Sign(t, key, "k", authntest.Claims{"iss": provider.URL, "aud": "a", "sub": "jane", "exp": time.Now().Add(expiry).Unix()})
	}
	for name, c := range map[string]struct {
		change func(*kubeoptions.BuiltInAuthenticationOptions)
		token  string
		want   time.Duration
	}{
		"token file":               {withIssuer, "from-file", keepKnown},
		"issuer":                   {withIssuer, of(time.Hour), keepUnknown},
		"issuer, ends soon":        {withIssuer, of(8 * time.Second), 8 * time.Second},
		"issuer, or the webhook":   {withWebhook, of(time.Hour), 0},
		"webhook":                  {withWebhook, "anything", 0},
		"token file, not the hook": {withWebhook, "from-file", keepKnown},
	} {
		t.Run(name, func(t *testing.T) {
			tokens, _ := startWith(t, authntest.NewRSAKey(t), c.change)
			servetest.Eventually(t, func() error { // until the issuer's keys are there
				_, _, err := tokens.AuthenticateToken(t.Context(), c.token)
				return err
			})
			got := lifetimeOf(t, tokens, c.token)
			if len(got.Dependencies) > 0 {
				t.Errorf("dependencies = %v, want none", got.Dependencies)
			}
			wantKept(t, name, got, c.want)
		})
	}
}

// TestNoLifetime has a token refused, and a caller who does not ask.
func TestNoLifetime(t *testing.T) {
	tokens, _, key := start(t, "", &corev1.ServiceAccount{ObjectMeta: meta("cart", "1")})
	good := authntest.Sign(t, key, "", authntest.ServiceAccountClaims(issuer, "shop", "cart", "uid", []string{issuer}, nil))
	if _, ok, err := tokens.AuthenticateToken(context.Background(), good); !ok {
		t.Errorf("AuthenticateToken() = %v, %v, want true", ok, err)
	}
	ctx, lifetime := WithLifetime(t.Context())
	bad := authntest.Sign(t, key, "", authntest.ServiceAccountClaims(issuer, "shop", "cart", "other", []string{issuer}, nil))
	if _, ok, _ := tokens.AuthenticateToken(ctx, bad); ok || !lifetime.KeepUntil.IsZero() || len(lifetime.Dependencies) > 0 {
		t.Errorf("AuthenticateToken() = %v with %+v, want a refusal without", ok, lifetime)
	}
}

// TestClaimsThatUpstreamDidNotCompare would have a verdict of somebody else kept as one of
// the service accounts' authenticator.
func TestClaimsThatUpstreamDidNotCompare(t *testing.T) {
	key := authntest.NewRSAKey(t)
	found := func(resource, name string) foundObject {
		return foundObject{informed: true, Object: convert.Object{Resource: resource, Namespace: "shop", Name: name, UID: "uid", ResourceVersion: 1}}
	}
	sa := found(convert.ServiceAccounts, "cart")
	l := &lifetimes{issuers: []string{issuer}}
	pod := map[string]any{"pod": map[string]any{"name": "p", "uid": "uid"}}
	claims := func(private map[string]any) authntest.Claims {
		return authntest.ServiceAccountClaims(issuer, "shop", "cart", "uid", nil, private)
	}
	for name, c := range map[string]struct {
		claims authntest.Claims
		found  []foundObject
		want   bool
	}{
		"as it is":             {claims(nil), []foundObject{sa}, true},
		"pod":                  {claims(pod), []foundObject{sa, found(convert.Pods, "p")}, true},
		"pod not looked up":    {claims(pod), []foundObject{sa}, false},
		"another pod":          {claims(pod), []foundObject{sa, found(convert.Pods, "q")}, false},
		"more looked up":       {claims(nil), []foundObject{sa, found("validatingwebhookconfigurations", "w")}, false},
		"another issuer":       {claims(nil).With("iss", "https://other.example.com"), []foundObject{sa}, false},
		"legacy, not a secret": {claims(nil).With("iss", serviceaccount.LegacyIssuer), []foundObject{sa}, false},
	} {
		token := authntest.Sign(t, key, "", c.claims)
		if got := l.isServiceAccount(token, claimsOf(token), c.found); got != c.want {
			t.Errorf("isServiceAccount(%s) = %v, want %v", name, got, c.want)
		}
	}
	for _, token := range []string{"", "a.b.c", "a.!.c", "a..c", "a.bm9KU09O.c", "a.b.c.d"} {
		if got := claimsOf(token); got != nil {
			t.Errorf("claimsOf(%q) = %+v, want nil", token, got)
		}
	}
}

// FuzzClaims reads the claims of any token.
func FuzzClaims(f *testing.F) {
	f.Add("a.eyJpc3MiOiJhIiwiZXhwIjoxZTMwMCwia3ViZXJuZXRlcy5pbyI6eyJwb2QiOnt9LCJ3YXJuYWZ0ZXIiOi0xfX0.c")
	f.Add("a.e30.c")
	f.Fuzz(func(t *testing.T, token string) {
		claims := claimsOf(token)
		if claims == nil {
			return
		}
		now := time.Now()
		if until := claims.keepUntil(now); until.After(now.Add(keepKnown)) {
			t.Errorf("keepUntil() = %s from now, want at most %s", until.Sub(now), keepKnown)
		}
		claims.match(nil)
		claims.matchLegacy(token, nil)
	})
}
