package stage

import (
	"context"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/serviceaccount"

	authnclient "github.com/trigate/trigate/services/authn/client"
)

// keysHook keeps the published keys of service-account tokens fresh.
const keysHook = "trigate-service-account-keys"

// Tokens issue service-account tokens, and publish the keys that verify them, by
// the authn gate.
type Tokens struct {
	// Issuer signs tokens for the TokenRequest API.
	Issuer serviceaccount.TokenGenerator

	keys *authnclient.PublicKeys
}

// tokens sets up the token issuer and the keys' refresh.
func tokens(config *genericapiserver.Config, authn *authnclient.Conn) (*Tokens, error) {
	t := &Tokens{
		Issuer: noteIssuer{authnclient.NewTokenGenerator(authn)},
		keys:   authnclient.NewPublicKeys(authn),
	}
	err := config.AddPostStartHook(keysHook, func(hook genericapiserver.PostStartHookContext) error {
		go t.keys.Run(hook) // ends with the server's context
		return nil
	})
	return t, err
}

// InstallDiscovery serves /.well-known/openid-configuration and /openid/v1/jwks on
// server. As upstream does, it leaves them out, with a line in the log, for an
// issuer of which they cannot be made.
func (t *Tokens) InstallDiscovery(server *genericapiserver.GenericAPIServer, issuer, jwksURI, externalAddress string) {
	metadata, err := authnclient.NewOpenIDMetadata(issuer, jwksURI, externalAddress, t.keys)
	if err != nil {
		klog.Background().Error(err, "The service-account issuer's discovery documents will not be served", "issuer", issuer)
		return
	}
	metadata.Install(server.Handler.GoRestfulContainer)
}

// noteIssuer marks the request when authn could not sign, so that it ends as
// unavailable and not as an internal error.
type noteIssuer struct{ next serviceaccount.TokenGenerator }

var _ serviceaccount.TokenGenerator = noteIssuer{}

// GenerateToken implements serviceaccount.TokenGenerator.
func (n noteIssuer) GenerateToken(ctx context.Context, claims *jwt.Claims, privateClaims any) (string, error) {
	token, err := n.next.GenerateToken(ctx, claims, privateClaims)
	if err != nil {
		noteFailure(ctx, gateAuthn, err)
	}
	return token, err
}
