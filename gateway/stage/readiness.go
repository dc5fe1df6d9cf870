package stage

import (
	"net/http"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
)

// readiness adds one check for each gate to /readyz. A gate that is down is no
// reason to restart the gateway, so /livez has none.
func readiness(config *genericapiserver.Config, gates *Gates) {
	for _, gate := range []struct {
		name  string
		ready func() error
	}{
		{gateAuthn, gates.Authn.Ready},
		{gateAuthz, gates.Authz.Ready},
		{gateAdmission, gates.Admission.Ready},
	} {
		config.AddReadyzChecks(healthz.NamedCheck("gate-"+gate.name, func(*http.Request) error {
			return gate.ready()
		}))
	}
}
