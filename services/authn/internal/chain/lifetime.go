package chain

import (
	"context"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstrapsecretutil "k8s.io/cluster-bootstrap/util/secrets"
	bootstraptokenutil "k8s.io/cluster-bootstrap/util/tokens"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/trigate/trigate/services/authn/internal/convert"
)

const (
	// keepKnown is for verdicts of which every change is told. It has an end all the
	// same, since the last-used label of a legacy token wants to be looked at.
	keepKnown = 10 * time.Minute
	// keepUnknown is for verdicts that somebody else may change without telling: it is
	// for how long kube-apiserver keeps every verdict.
	keepUnknown = 10 * time.Second
)

type lifetimeContextKey struct{}

// WithLifetime returns a context for one call of the chain, which leaves there how long
// its verdict holds, but for the configuration. It stays zero for a token that is not
// good.
func WithLifetime(ctx context.Context) (context.Context, *convert.Lifetime) {
	lifetime := &convert.Lifetime{}
	return context.WithValue(ctx, lifetimeContextKey{}, lifetime), lifetime
}

// lifetimes tells how long verdicts of upstream's chain hold. Upstream does not say
// which of its authenticators knew a token, so that is concluded from what they would
// have needed for it; in doubt a verdict is not kept.
type lifetimes struct {
	// tokenFile is the first authenticator of the chain once more. Nil: there is none.
	tokenFile authenticator.Token
	// issuers are those of service-account tokens.
	issuers []string
	// bootstrap has the secrets of bootstrap tokens. Nil: they are not in use.
	bootstrap corelisters.SecretNamespaceLister
	// webhook is whether a webhook is asked about what nobody else knows.
	webhook bool
}

func newLifetimes(options *kubeoptions.BuiltInAuthenticationOptions, factory informers.SharedInformerFactory) (*lifetimes, error) {
	l := &lifetimes{issuers: options.ServiceAccounts.Issuers, webhook: options.WebHook.ConfigFile != ""}
	if options.BootstrapToken.Enable {
		l.bootstrap = factory.Core().V1().Secrets().Lister().Secrets(metav1.NamespaceSystem)
	}
	if file := options.TokenFile.TokenFile; file != "" {
		tokens, err := tokenfile.NewCSV(file)
		if err != nil {
			return nil, fmt.Errorf("reading tokens %s: %w", file, err)
		}
		l.tokenFile = tokens
	}
	return l, nil
}

// note leaves in ctx how long a good verdict holds. The secret is that of the bootstrap
// token, as it was before the chain was asked; nil if the token is none.
func (l *lifetimes) note(ctx context.Context, token string, found []foundObject, secret *corev1.Secret) {
	lifetime, ok := ctx.Value(lifetimeContextKey{}).(*convert.Lifetime)
	if !ok {
		return
	}
	now := time.Now()
	claims := claimsOf(token)
	switch {
	case l.inTokenFile(ctx, token):
		lifetime.KeepUntil = now.Add(keepKnown)
	case len(found) > 0:
		lifetime.Dependencies = dependencies(found)
		if l.isServiceAccount(token, claims, found) {
			lifetime.KeepUntil = claims.keepUntil(now)
		}
	case isBootstrap(token, secret, now):
		lifetime.Dependencies = []convert.Object{newFound(convert.Secrets, secret).Object}
		lifetime.KeepUntil = now.Add(keepKnown)
		if left, _ := bootstrapsecretutil.GetExpiration(secret, now); left > 0 {
			lifetime.KeepUntil = earliest(lifetime.KeepUntil, now.Add(left))
		}
	case !l.webhook && claims != nil && claims.Expiry > 0:
		// Nobody but an OpenID issuer is left.
		lifetime.KeepUntil = earliest(now.Add(keepUnknown), seconds(claims.Expiry))
	}
}

func (l *lifetimes) inTokenFile(ctx context.Context, token string) bool {
	if l.tokenFile == nil {
		return false
	}
	_, known, err := l.tokenFile.AuthenticateToken(ctx, token)
	return known && err == nil
}

// bootstrapSecret returns the secret that a token is in if it is a bootstrap token, else
// nil.
func (l *lifetimes) bootstrapSecret(token string) *corev1.Secret {
	if l.bootstrap == nil || len(token) > maxBootstrapTokenBytes {
		return nil
	}
	id, _, err := bootstraptokenutil.ParseToken(token)
	if err != nil {
		return nil
	}
	secret, err := l.bootstrap.Get(bootstrapapi.BootstrapTokenSecretPrefix + id)
	if err != nil {
		return nil
	}
	return secret
}

// maxBootstrapTokenBytes saves the look at longer tokens: bootstrap tokens have 23.
const maxBootstrapTokenBytes = 64

// isBootstrap tells whether upstream's authenticator of bootstrap tokens knows the token
// of that secret.
func isBootstrap(token string, secret *corev1.Secret, now time.Time) bool {
	if secret == nil || secret.DeletionTimestamp != nil || secret.UID == "" ||
		secret.Type != bootstrapapi.SecretTypeBootstrapToken || bootstrapsecretutil.HasExpired(secret, now) {
		return false
	}
	want := bootstrapsecretutil.GetData(secret, bootstrapapi.BootstrapTokenIDKey) + "." +
		bootstrapsecretutil.GetData(secret, bootstrapapi.BootstrapTokenSecretKey)
	return subtle.ConstantTimeCompare([]byte(want), []byte(token)) == 1 &&
		bootstrapsecretutil.GetData(secret, bootstrapapi.BootstrapTokenUsageAuthentication) == "true"
}

// isServiceAccount tells whether upstream's validators accepted a token of a service
// account whose look-ups found these objects, each of which tells of its end. They look
// up when signature, issuer, audience and times are right, so that only what they compare
// with the objects is left to compare.
func (l *lifetimes) isServiceAccount(token string, claims *claims, found []foundObject) bool {
	if claims == nil || slices.ContainsFunc(found, func(f foundObject) bool { return f.ending || !f.informed || f.UID == "" }) {
		return false
	}
	if claims.Issuer == serviceaccount.LegacyIssuer {
		return claims.matchLegacy(token, found)
	}
	return slices.Contains(l.issuers, claims.Issuer) && claims.match(found)
}

// claims are those claims of a token that say what it hangs on. They are read from a
// token that has been found good, and are not verified again.
type claims struct {
	Issuer     string  `json:"iss"`
	Expiry     float64 `json:"exp"`
	Kubernetes struct {
		Namespace      string  `json:"namespace"`
		ServiceAccount named   `json:"serviceaccount"`
		Pod            *named  `json:"pod"`
		Secret         *named  `json:"secret"`
		Node           *named  `json:"node"`
		WarnAfter      float64 `json:"warnafter"`
	} `json:"kubernetes.io"`

	LegacyNamespace string `json:"kubernetes.io/serviceaccount/namespace"`
	LegacySecret    string `json:"kubernetes.io/serviceaccount/secret.name"`
	LegacyName      string `json:"kubernetes.io/serviceaccount/service-account.name"`
	LegacyUID       string `json:"kubernetes.io/serviceaccount/service-account.uid"`
}

// named is a reference to an object.
type named struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// claimsOf reads the claims of a JWT. Nil: it is none.
func claimsOf(token string) *claims {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil
	}
	read := &claims{}
	if err := json.Unmarshal(payload, read); err != nil {
		return nil
	}
	return read
}

// match tells whether all that a bound token names is among what was found.
func (c *claims) match(found []foundObject) bool {
	k := c.Kubernetes
	wanted := []convert.Object{{Resource: convert.ServiceAccounts, Namespace: k.Namespace, Name: k.ServiceAccount.Name, UID: k.ServiceAccount.UID}}
	if k.Secret != nil {
		wanted = append(wanted, convert.Object{Resource: convert.Secrets, Namespace: k.Namespace, Name: k.Secret.Name, UID: k.Secret.UID})
	}
	switch {
	case k.Pod != nil:
		// The node of a pod's token is no more than a hint.
		wanted = append(wanted, convert.Object{Resource: convert.Pods, Namespace: k.Namespace, Name: k.Pod.Name, UID: k.Pod.UID})
	case k.Node != nil:
		wanted = append(wanted, convert.Object{Resource: convert.Nodes, Name: k.Node.Name, UID: k.Node.UID})
	}
	return len(wanted) == len(found) && !slices.ContainsFunc(wanted, func(want convert.Object) bool {
		return !slices.ContainsFunc(found, func(f foundObject) bool {
			got := f.Object
			got.ResourceVersion = 0
			return got == want
		})
	})
}

// matchLegacy does so for a token that is kept in a secret.
func (c *claims) matchLegacy(token string, found []foundObject) bool {
	var accountFound, secretFound bool
	for _, f := range found {
		switch {
		case f.Namespace != c.LegacyNamespace:
			return false
		case f.Resource == convert.ServiceAccounts:
			accountFound = f.Name == c.LegacyName && f.UID == c.LegacyUID
		case f.Resource == convert.Secrets:
			secretFound = f.Name == c.LegacySecret && f.keeps(token)
		}
	}
	return accountFound && secretFound && len(found) == 2
}

// keepUntil returns until when the verdict on a token of a service account may be kept.
func (c *claims) keepUntil(now time.Time) time.Time {
	until := now.Add(keepKnown)
	if c.Expiry > 0 {
		until = earliest(until, seconds(c.Expiry))
	}
	if c.Kubernetes.WarnAfter > 0 {
		// From then on each use is warned of, with how much too late it is.
		if warn := seconds(c.Kubernetes.WarnAfter); warn.After(now) {
			until = earliest(until, warn)
		} else {
			until = earliest(until, now.Add(keepUnknown))
		}
	}
	return until
}

// maxSeconds is the end of all times that time.Time has no trouble with.
const maxSeconds = 1 << 40

// seconds returns the time that a claim says.
func seconds(claim float64) time.Time { return time.Unix(int64(min(claim, maxSeconds)), 0) }

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// dependencies returns those of the found objects of which WatchRevocations tells.
func dependencies(found []foundObject) []convert.Object {
	var objects []convert.Object
	for _, f := range found {
		switch f.Resource {
		case convert.ServiceAccounts, convert.Secrets, convert.Pods, convert.Nodes:
			objects = append(objects, f.Object)
		}
	}
	return objects
}
