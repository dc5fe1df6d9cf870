package app

import (
	"context"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/trigate/trigate/services/authn/internal/chain"
	"github.com/trigate/trigate/services/authn/internal/keys"
	"github.com/trigate/trigate/services/authn/internal/revocations"
	"github.com/trigate/trigate/services/internal/serve"
)

// configurationPart is the name of the AuthenticationConfiguration file in the health.
const configurationPart = "authentication-config"

// fileInterval is how often upstream's metrics are asked what became of the
// AuthenticationConfiguration file.
const fileInterval = time.Second

// configuration tells the hub which authenticators are in force: those of the flags,
// with the keys of service-account tokens, and those of the AuthenticationConfiguration
// file. It is safe for concurrent use.
type configuration struct {
	hub  *revocations.Hub
	keys *keys.Keys
	// flags is a digest of what does not change.
	flags string
	// file is the name of the AuthenticationConfiguration file. Empty: there is none.
	file string
	// metrics are those in which upstream tells of the file.
	metrics prometheus.Gatherer
}

var _ serviceaccount.Listener = (*configuration)(nil)

// Enqueue is called when the keys have changed.
func (c *configuration) Enqueue() { c.update(klog.Background()) }

// update tells the hub what is in force, and returns what became of the file.
func (c *configuration) update(logger klog.Logger) chain.FileState {
	var state chain.FileState
	if c.file != "" {
		var err error
		if state, err = chain.ReadFileState(c.metrics); err != nil {
			logger.Error(err, "Cannot tell which authentication configuration is in force")
			return state
		}
	}
	parts := []string{c.flags, state.Hash}
	for _, key := range c.keys.GetPublicKeys(context.Background(), "") {
		parts = append(parts, key.KeyID)
	}
	c.hub.SetConfiguration(chain.Digest([]byte(strings.Join(parts, "\n"))))
	return state
}

// task follows the file, and reports to health whether its present content is in force.
func (c *configuration) task(health *serve.Health) serve.Task {
	return serve.Task{Name: configurationPart, Run: func(ctx context.Context) error {
		logger := klog.FromContext(ctx)
		if c.file == "" {
			return nil
		}
		wait.UntilWithContext(ctx, func(context.Context) {
			detail := ""
			if c.update(logger).Failed {
				detail = "the content of " + c.file + " cannot be used, an older one is in force"
			}
			health.Set(configurationPart, true, detail)
		}, fileInterval)
		return nil
	}}
}
