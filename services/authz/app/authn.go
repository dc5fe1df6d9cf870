package app

import (
	"fmt"

	"k8s.io/component-base/metrics/legacyregistry"

	authnclient "github.com/trigate/trigate/services/authn/client"
	"github.com/trigate/trigate/services/internal/serve"
)

// dialAuthn connects to the authentication service, if there is one, for the
// tokens of people who call this service.
func (c *Config) dialAuthn(o serve.CompletedOptions) error {
	endpoint := o.Endpoints[peerAuthn]
	if endpoint == "" {
		return nil
	}
	conn, err := authnclient.Dial(authnclient.Config{
		Endpoint:       endpoint,
		CAFile:         o.PeerCAFile,
		CertFile:       o.PeerClientCertFile,
		KeyFile:        o.PeerClientKeyFile,
		Registerer:     legacyregistry.Registerer(),
		TracerProvider: c.Serve.TracerProvider,
	})
	if err != nil {
		return fmt.Errorf("--%s: %w", flagAuthn, err)
	}
	c.Tokens, c.close = authnclient.NewToken(conn), conn.Close
	return nil
}
