package process

import (
	"context"
	"fmt"
	"os"

	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"github.com/trigate/trigate/services/internal/serve"
)

// NewTracerProvider reads a TracingConfiguration, kube-apiserver's, and returns what
// sends the spans of the named program to its endpoint. Without a file it returns
// nil, and nothing is traced. Errors start with the flag.
//
// A service begins no trace of its own: it joins those that its callers have
// sampled, so samplingRatePerMillion has no effect here, and neither informers nor
// other work in the background is ever traced. serve.Server.Run shuts it down.
func NewTracerProvider(file, program string) (tracing.TracerProvider, error) {
	if file == "" {
		return nil, nil
	}
	fail := func(err error) (tracing.TracerProvider, error) {
		return nil, fmt.Errorf("--%s: %s: %w", serve.FlagTracingConfigFile, file, err)
	}
	config, err := genericoptions.ReadTracingConfiguration(file)
	if err != nil {
		return fail(err)
	}
	if errs := tracingapi.ValidateTracingConfiguration(config, utilfeature.DefaultFeatureGate, nil); len(errs) > 0 {
		return fail(errs.ToAggregate())
	}
	config.SamplingRatePerMillion = nil
	attributes := resource.WithAttributes(semconv.ServiceNameKey.String(program))
	if host, err := os.Hostname(); err == nil {
		attributes = resource.WithAttributes(
			semconv.ServiceNameKey.String(program), semconv.ServiceInstanceIDKey.String(host))
	}
	provider, err := tracing.NewProvider(context.Background(), config, nil, []resource.Option{attributes})
	if err != nil {
		return fail(err)
	}
	return provider, nil
}
