package stage

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	requestx509 "k8s.io/apiserver/pkg/authentication/request/x509"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	kubeauthenticator "k8s.io/kubernetes/pkg/kubeapiserver/authenticator"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/utils/clock"

	"github.com/trigate/trigate/gateway/identities"
	"github.com/trigate/trigate/gateway/rest"
)

// authentication sets up who a request's client is, in upstream's order: front
// proxy, client certificate, bearer token (asked of authn, whose verdicts are kept
// while nothing that they hang on changes), websocket protocol, anonymous. It returns
// the services' own certificates, which authorization gives their fixed rights, and the
// identities that are kept.
func authentication(
	config *genericapiserver.Config,
	opts *kubeoptions.BuiltInAuthenticationOptions,
	authn identities.Service,
	reviews *tokenReviews,
	gatesCAFile string,
	observers writeObservers,
) (*serviceCertificates, *identities.Cache, error) {
	upstream, err := opts.ToAuthenticationConfig()
	if err != nil {
		return nil, nil, err
	}
	gatesCA, err := dynamiccertificates.NewDynamicCAContentFromFile("gates-ca-bundle", gatesCAFile)
	if err != nil {
		return nil, nil, fmt.Errorf("--gates-ca-file: %w", err)
	}
	if err := trustClientCAs(config, upstream, gatesCA); err != nil {
		return nil, nil, err
	}
	config.Authentication.RequestHeaderConfig = upstream.RequestHeaderConfig
	config.Authentication.APIAudiences = upstream.APIAudiences

	tokens, err := keptIdentities(config, authn, observers)
	if err != nil {
		return nil, nil, err
	}
	services := newServiceCertificates(gatesCA)
	config.Authentication.Authenticator = requestAuthenticator(upstream, services, &reviewedToken{next: noteToken{tokens}, reviews: reviews})
	describeBearerToken(config)
	return services, tokens, nil
}

// keptIdentities returns the tokens' authenticator: authn, with a cache that hears of what
// ends an identity from this gateway's own writes and from authn.
func keptIdentities(config *genericapiserver.Config, authn identities.Service, observers writeObservers) (*identities.Cache, error) {
	cache, err := identities.New(identities.Config{
		Service: authn, MaxEntries: identities.DefaultMaxEntries, MaxBytes: identities.DefaultMaxBytes,
	})
	if err != nil {
		return nil, err
	}
	observers.add(cache.Observe, identities.Resources()...)
	if err := legacyregistry.Registerer().Register(cache); err != nil {
		return nil, fmt.Errorf("registering the metrics of the identity cache: %w", err)
	}
	return cache, config.AddPostStartHook("trigate-revocations", func(hook genericapiserver.PostStartHookContext) error {
		go cache.Run(hook)
		return nil
	})
}

// trustClientCAs has the TLS handshake ask for and verify the certificates of all
// CAs that identify a client.
func trustClientCAs(config *genericapiserver.Config, upstream kubeauthenticator.Config, gatesCA dynamiccertificates.CAContentProvider) error {
	providers := []dynamiccertificates.CAContentProvider{gatesCA}
	if upstream.ClientCAContentProvider != nil {
		providers = append(providers, upstream.ClientCAContentProvider)
	}
	if upstream.RequestHeaderConfig != nil && upstream.RequestHeaderConfig.CAContentProvider != nil {
		providers = append(providers, upstream.RequestHeaderConfig.CAContentProvider)
	}
	for _, provider := range providers {
		if err := config.Authentication.ApplyClientCert(provider, config.SecureServing); err != nil {
			return fmt.Errorf("loading the client CA %s: %w", provider.Name(), err)
		}
	}
	return nil
}

// requestAuthenticator joins the authenticators as upstream's
// kubeauthenticator.Config.New does, with the services' certificates after the
// clients' and one token authenticator that asks authn.
func requestAuthenticator(upstream kubeauthenticator.Config, services *serviceCertificates, tokens authenticator.Token) authenticator.Request {
	var chain []authenticator.Request
	if proxy := upstream.RequestHeaderConfig; proxy != nil {
		chain = append(chain, authenticator.WrapAudienceAgnosticRequest(upstream.APIAudiences,
			headerrequest.NewDynamicVerifyOptionsSecure(
				proxy.CAContentProvider.VerifyOptions,
				proxy.AllowedClientNames,
				proxy.UsernameHeaders,
				proxy.UIDHeaders,
				proxy.GroupHeaders,
				proxy.ExtraHeaderPrefixes,
			)))
	}
	if ca := upstream.ClientCAContentProvider; ca != nil {
		chain = append(chain, newCertificateMemory(ca.VerifyOptions, requestx509.CommonNameUserConversion, clock.RealClock{}))
	}
	chain = append(chain,
		services,
		bearertoken.New(tokens),
		websocket.NewProtocolAuthenticator(tokens),
	)
	request := group.NewAuthenticatedGroupAdder(union.New(chain...))
	if !upstream.Anonymous.Enabled {
		return request
	}
	// An error is no absence of credentials: it must not end in anonymous.
	return union.NewFailOnError(request, notForGates{anonymous.NewAuthenticator(upstream.Anonymous.Conditions)})
}

// notForGates takes nobody for anonymous at the gates' own paths: who asks there without
// credentials is told so by a 401, and nobody can let the world ask by a binding.
type notForGates struct{ next authenticator.Request }

var _ authenticator.Request = notForGates{}

// AuthenticateRequest implements authenticator.Request.
func (n notForGates) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	// The request of a TokenReview has no URL.
	if req.URL != nil && strings.HasPrefix(req.URL.Path, rest.Prefix) {
		return nil, false, nil
	}
	return n.next.AuthenticateRequest(req)
}

// describeBearerToken puts the token into the OpenAPI documents, as upstream does.
func describeBearerToken(config *genericapiserver.Config) {
	const description = "Bearer Token authentication"
	config.OpenAPIConfig.SecurityDefinitions = &spec.SecurityDefinitions{
		"BearerToken": &spec.SecurityScheme{SecuritySchemeProps: spec.SecuritySchemeProps{
			Type: "apiKey", Name: "authorization", In: "header", Description: description,
		}},
	}
	config.OpenAPIV3Config.SecuritySchemes = spec3.SecuritySchemes{
		"BearerToken": &spec3.SecurityScheme{SecuritySchemeProps: spec3.SecuritySchemeProps{
			Type: "apiKey", Name: "authorization", In: "header", Description: description,
		}},
	}
}

// noteToken marks the request when authn could not decide, so that it ends as
// unavailable and not as unauthorized.
type noteToken struct{ next authenticator.Token }

var _ authenticator.Token = noteToken{}

// AuthenticateToken implements authenticator.Token.
func (n noteToken) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	resp, ok, err := n.next.AuthenticateToken(ctx, token)
	if err != nil {
		noteFailure(ctx, gateAuthn, err)
		return nil, false, err
	}
	return resp, ok, nil
}
