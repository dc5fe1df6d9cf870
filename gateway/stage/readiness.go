package stage

import (
	"context"
	"net/http"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/klog/v2"
)

const (
	// gatesHook tells the log about the gates.
	gatesHook = "trigate-watch-gates"
	// gateLook is how often the gates are looked at for the log, and gateNews how often
	// the log says that one is still away.
	gateLook = time.Second
	gateNews = 10 * time.Second
)

// gateCheck tells whether a gate is ready.
type gateCheck struct {
	name  string
	ready func() error
}

// readiness adds one check for each gate to /readyz. A gate that is down is no
// reason to restart the gateway, so /livez has none. /readyz is public and says which
// gate is not ready; the log says why.
func readiness(config *genericapiserver.Config, gates *Gates) error {
	checks := []gateCheck{
		{gateAuthn, gates.Authn.Ready},
		{gateAuthz, gates.Authz.Ready},
		{gateAdmission, gates.Admission.Ready},
	}
	for _, check := range checks {
		config.AddReadyzChecks(healthz.NamedCheck("gate-"+check.name, func(*http.Request) error {
			return check.ready()
		}))
	}
	return config.AddPostStartHook(gatesHook, func(hook genericapiserver.PostStartHookContext) error {
		for _, check := range checks {
			go check.watch(hook) // ends with the server's context
		}
		return nil
	})
}

// watch logs when the gate comes and goes, and why it is away, until ctx ends.
func (c gateCheck) watch(ctx context.Context) {
	logger := klog.FromContext(ctx)
	ticker := time.NewTicker(gateLook)
	defer ticker.Stop()
	away, news := true, time.Now().Add(gateLook) // a gate may be a moment later
	for {
		switch err := c.ready(); {
		case err == nil && away:
			away = false
			logger.Info("A gate is ready", "gate", c.name)
		case err != nil && (!away || time.Now().After(news)):
			away, news = true, time.Now().Add(gateNews)
			logger.Info("Waiting for a gate", "gate", c.name, "reason", err.Error())
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
