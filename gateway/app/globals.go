package app

import (
	"io"
	"os"

	"google.golang.org/grpc/grpclog"
	"k8s.io/client-go/rest"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // the controllers' queues show in /metrics, as upstream's do
	"k8s.io/klog/v2"
	_ "k8s.io/kubernetes/pkg/features" // the feature gates of Kubernetes
)

// This file is the only one in the gateway that touches Kubernetes' globals:
// feature gates, the effective version, logging, gRPC's included, and client-go's
// warnings.

// applyGlobals puts the parsed feature gates and versions in force.
func applyGlobals(opts *Options) error {
	if err := opts.Server.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return err
	}
	// The loopback client would otherwise log the warnings that it causes.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	return nil
}

// applyLogs puts the logging configuration in force.
//
// gRPC's own warnings are dropped, unless much is to be logged. There is one for each
// attempt to connect to a gate that is away, once a second, which says nothing that
// /readyz and the errors of calls do not say; and one after the connections have been
// closed, which would come after the process' last word.
func applyLogs(opts *Options) error {
	registry := opts.Server.GenericServerRunOptions.ComponentGlobalsRegistry
	if err := logsapi.ValidateAndApply(opts.Server.Logs, registry.FeatureGateFor(basecompatibility.DefaultKubeComponent)); err != nil {
		return err
	}
	if !klog.V(4).Enabled() {
		grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, os.Stderr))
	}
	return nil
}

// recordGlobals exposes feature gates and versions as metrics.
func recordGlobals(opts *Options) {
	registry := opts.Server.GenericServerRunOptions.ComponentGlobalsRegistry
	if gate, ok := registry.FeatureGateFor(basecompatibility.DefaultKubeComponent).(featuregate.MutableFeatureGate); ok {
		gate.AddMetrics()
	}
	registry.AddMetrics()
}
