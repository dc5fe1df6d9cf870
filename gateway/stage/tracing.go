package stage

import (
	"fmt"

	"go.opentelemetry.io/otel/trace"
	genericapiserver "k8s.io/apiserver/pkg/server"
	kubeapiserveroptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// tracing applies egress selection and, which may go that way, --tracing-config-file.
// What it returns gets the spans of calls; nil if nothing is traced. The server that is
// made of config shuts it down.
func tracing(config *genericapiserver.Config, opts kubeapiserveroptions.CompletedOptions) (trace.TracerProvider, error) {
	if err := opts.EgressSelector.ApplyTo(config); err != nil {
		return nil, err
	}
	if opts.Traces.ConfigFile == "" {
		return nil, nil
	}
	if err := opts.Traces.ApplyTo(config.EgressSelector, config); err != nil {
		// Upstream's error has the reason, but neither the flag nor always the file.
		return nil, fmt.Errorf("--tracing-config-file %s: %w", opts.Traces.ConfigFile, err)
	}
	return config.TracerProvider, nil
}
