// Package chain builds kube-apiserver's own chain of token authenticators, with
// the options and packages of kube-apiserver, and gives it out as an
// authenticator.Token.
package chain

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// Config is what New needs.
type Config struct {
	// Options are kube-apiserver's flags for token authenticators. New does not
	// change them.
	Options *kubeoptions.BuiltInAuthenticationOptions
	// PublicKeys verify service-account tokens, instead of those that
	// Options.ServiceAccounts names.
	PublicKeys serviceaccount.PublicKeysGetter
	// Client reads what the informers do not have yet, and labels the secrets of
	// legacy tokens.
	Client kubernetes.Interface
	// Informers gets the informers that the chain reads. The caller starts them,
	// after New.
	Informers informers.SharedInformerFactory
	// EgressSelector dials issuers and webhooks. Nil: directly.
	EgressSelector *egressselector.EgressSelector
	// ServerID tells this process from others in upstream's metrics.
	ServerID string
}

// NewOptions returns kube-apiserver's options for token authenticators, with its
// defaults. Client certificates, front proxies and anonymous requests are the
// gateway's.
//
// The cache of successes, which upstream has at 10 s, is off: in it a deleted
// service account lives on. What it would save is a signature verification and
// look-ups in informers. Webhooks have a cache of their own, by their flag.
func NewOptions() *kubeoptions.BuiltInAuthenticationOptions {
	o := kubeoptions.NewBuiltInAuthenticationOptions().
		WithBootstrapToken().
		WithOIDC().
		WithServiceAccounts().
		WithTokenFile().
		WithWebHook()
	o.TokenSuccessCacheTTL = 0
	return o
}

// New builds the chain. Until ctx ends it follows Options.AuthenticationConfigFile,
// with upstream's code and metrics, and fetches the keys of issuers.
//
// The result differs from what kube-apiserver has in one point: if an object
// that a token depends on could neither be found nor be found missing, its error
// is an *rpcerr.Error, where kube-apiserver would refuse the token. Any other
// error is a refusal.
func New(ctx context.Context, cfg Config) (authenticator.Token, error) {
	serviceaccount.RegisterMetrics()
	options := withKeys(cfg.Options, cfg.PublicKeys)
	options.ServiceAccounts.OptionalTokenGetter = func(factory informers.SharedInformerFactory) serviceaccount.ServiceAccountTokenGetter {
		return newGetter(cfg.Client, factory)
	}
	var info genericapiserver.AuthenticationInfo
	err := options.ApplyTo(ctx, &info, nil, cfg.EgressSelector, &openapicommon.Config{}, nil, cfg.Client, cfg.Informers, cfg.ServerID)
	if err != nil {
		return nil, err
	}
	if err := trim(cfg.Informers); err != nil {
		return nil, err
	}
	lifetimes, err := newLifetimes(options, cfg.Informers)
	if err != nil {
		return nil, err
	}
	return tokenOf(info.Authenticator, lifetimes)
}

// withKeys returns options that verify with other keys than the flags name.
// Upstream reads its files once; keys that are handed to it may change.
func withKeys(options *kubeoptions.BuiltInAuthenticationOptions, keys serviceaccount.PublicKeysGetter) *kubeoptions.BuiltInAuthenticationOptions {
	changed := *options
	serviceAccounts := *options.ServiceAccounts
	serviceAccounts.KeyFiles = nil
	serviceAccounts.ExternalPublicKeysGetter = keys
	changed.ServiceAccounts = &serviceAccounts
	return &changed
}

// APIAudiences returns the audiences of the Kubernetes API, as upstream derives
// them from the flags.
func APIAudiences(options *kubeoptions.BuiltInAuthenticationOptions) authenticator.Audiences {
	if len(options.APIAudiences) == 0 {
		return options.ServiceAccounts.Issuers
	}
	return options.APIAudiences
}

// tokenAuthenticator asks upstream's chain, which takes requests, about tokens.
type tokenAuthenticator struct {
	requests authenticator.Request
	// unrecognised are the errors by which upstream's request authenticators say
	// that no token authenticator knew the token.
	unrecognised []error
	lifetimes    *lifetimes
}

var _ authenticator.Token = (*tokenAuthenticator)(nil)

// tokenOf takes the chain of token authenticators out of the request
// authenticator that upstream made of it. Upstream puts users into the group
// system:authenticated; so does the gateway, for all ways to be somebody, so
// that part is left off.
func tokenOf(requests authenticator.Request, lifetimes *lifetimes) (authenticator.Token, error) {
	adder, ok := requests.(*group.AuthenticatedGroupAdder)
	if !ok {
		return nil, fmt.Errorf("upstream's authenticator is a %T, not the group adder around all others", requests)
	}
	t := &tokenAuthenticator{requests: adder.Authenticator, lifetimes: lifetimes}
	nobody := authenticator.TokenFunc(func(context.Context, string) (*authenticator.Response, bool, error) {
		return nil, false, nil
	})
	for _, upstream := range []authenticator.Request{bearertoken.New(nobody), websocket.NewProtocolAuthenticator(nobody)} {
		for _, shape := range []*http.Request{headerRequest("x"), websocketRequest("x")} {
			if _, _, err := upstream.AuthenticateRequest(shape); err != nil {
				t.unrecognised = append(t.unrecognised, err)
			}
		}
	}
	if len(t.unrecognised) == 0 {
		return nil, errors.New("upstream's request authenticators take no token from a request")
	}
	return t, nil
}

// AuthenticateToken implements authenticator.Token.
func (t *tokenAuthenticator) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	request := requestWith(token)
	if request == nil {
		return nil, false, nil
	}
	ctx, lookups := withLookups(ctx)
	secret := t.lifetimes.bootstrapSecret(token)
	response, ok, err := t.requests.AuthenticateRequest(request.WithContext(ctx))
	if ok && err == nil {
		t.lifetimes.note(ctx, token, lookups.objects(), secret)
		return response, true, nil
	}
	if lookupErr := lookups.err(); lookupErr != nil {
		return nil, false, lookupErr
	}
	for _, unrecognised := range t.unrecognised {
		if errors.Is(err, unrecognised) {
			return nil, false, nil
		}
	}
	return nil, false, err
}
