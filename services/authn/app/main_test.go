package app

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		// Upstream keeps the authenticators of a replaced configuration for a
		// minute, and half a minute more for their metrics.
		goleak.IgnoreAnyFunction("k8s.io/kubernetes/pkg/kubeapiserver/authenticator.(*authenticationConfigUpdater).updateAuthenticationConfig.func2"),
	)
}
