package stage

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/component-base/metrics/legacyregistry"

	admissionclient "github.com/trigate/trigate/services/admission/client"
	authnclient "github.com/trigate/trigate/services/authn/client"
	authzclient "github.com/trigate/trigate/services/authz/client"
)

// GatesConfig says where the services are and how the gateway proves to them who
// it is.
type GatesConfig struct {
	// AuthnEndpoint, AuthzEndpoint and AdmissionEndpoint are gRPC targets, or lists
	// of host:port separated by commas.
	AuthnEndpoint     string
	AuthzEndpoint     string
	AdmissionEndpoint string
	// CAFile verifies the services, as servers and as clients of the gateway.
	CAFile string
	// ClientCertFile and ClientKeyFile identify the gateway.
	ClientCertFile string
	ClientKeyFile  string
	// DecisionCacheEntries and DecisionCacheBytes bound the decisions of authz that
	// the gateway keeps. Either 0: none is kept.
	DecisionCacheEntries int
	DecisionCacheBytes   int64
	// AdmissionSkip is whether calls of admission that nobody is interested in are left
	// out.
	AdmissionSkip bool
}

// Gates are the connections to the three services. They connect, and connect
// again, by themselves. All methods may be called concurrently.
type Gates struct {
	// Authn tells who a token's bearer is, and signs tokens.
	Authn *authnclient.Conn
	// Authz decides what a user may do.
	Authz *authzclient.Client
	// Admission passes and changes what is written.
	Admission *admissionclient.Client
}

// dialGates makes the connections; it does not wait for any of them. A tracer that is
// not nil gets the spans of calls.
func dialGates(config GatesConfig, tracer trace.TracerProvider) (*Gates, error) {
	g := &Gates{}
	var err error
	if g.Authn, err = authnclient.Dial(authnclient.Config{
		Endpoint: config.AuthnEndpoint, CAFile: config.CAFile,
		CertFile: config.ClientCertFile, KeyFile: config.ClientKeyFile,
		Registerer: legacyregistry.Registerer(), TracerProvider: tracer,
	}); err != nil {
		return nil, fmt.Errorf("--authn-endpoint: %w", err)
	}
	if g.Authz, err = authzclient.Dial(authzclient.Config{
		Endpoint: config.AuthzEndpoint, CAFile: config.CAFile,
		CertFile: config.ClientCertFile, KeyFile: config.ClientKeyFile,
		Registerer: legacyregistry.Registerer(), TracerProvider: tracer,
	}); err != nil {
		return nil, errors.Join(fmt.Errorf("--authz-endpoint: %w", err), g.Close())
	}
	if g.Admission, err = admissionclient.Dial(admissionclient.Config{
		Endpoint: config.AdmissionEndpoint, CAFile: config.CAFile,
		CertFile: config.ClientCertFile, KeyFile: config.ClientKeyFile,
		Registerer: legacyregistry.Registerer(), TracerProvider: tracer,
	}); err != nil {
		return nil, errors.Join(fmt.Errorf("--admission-endpoint: %w", err), g.Close())
	}
	return g, nil
}

// WaitForWrites returns when the loopback client's writes would find their gate,
// or with ctx's error. The loopback client is authenticated and authorized in the
// gateway; its writes need admission alone.
func (g *Gates) WaitForWrites(ctx context.Context) error {
	return g.Admission.WaitReady(ctx)
}

// Close ends the connections.
func (g *Gates) Close() error {
	var errs []error
	if g.Authn != nil {
		errs = append(errs, g.Authn.Close())
	}
	if g.Authz != nil {
		errs = append(errs, g.Authz.Close())
	}
	if g.Admission != nil {
		errs = append(errs, g.Admission.Close())
	}
	return errors.Join(errs...)
}
