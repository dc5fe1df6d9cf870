package interceptor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"
)

// durationBuckets reach from a cached decision to a slow admission webhook.
var durationBuckets = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}

// Metrics counts calls by method and code, and times them by method. The
// method is bounded: gRPC calls no interceptor for a method that is not
// registered. Servers may share a registerer.
func Metrics(registerer prometheus.Registerer) (Interceptor, error) {
	seconds, err := Register(registerer, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "trigate_grpc_server_handling_seconds",
		Help:    "Time from the arrival of a call to its answer, by method; of a stream, to its end.",
		Buckets: durationBuckets,
	}, []string{"method"}))
	if err != nil {
		return Interceptor{}, err
	}
	handled, err := Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "trigate_grpc_server_handled_total",
		Help: "Calls that were answered, by method and gRPC status code.",
	}, []string{"method", "code"}))
	if err != nil {
		return Interceptor{}, err
	}
	return New("metrics", func(ctx context.Context, call *Call, next func(context.Context) error) error {
		start := time.Now()
		err := next(ctx)
		seconds.WithLabelValues(call.FullMethod).Observe(time.Since(start).Seconds())
		handled.WithLabelValues(call.FullMethod, status.Code(err).String()).Inc()
		return err
	}), nil
}

// Register registers a collector, or returns the one that another server of
// this process registered before.
func Register[C prometheus.Collector](registerer prometheus.Registerer, collector C) (C, error) {
	err := registerer.Register(collector)
	if err == nil {
		return collector, nil
	}
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if existing, ok := already.ExistingCollector.(C); ok {
			return existing, nil
		}
	}
	return collector, fmt.Errorf("registering metrics: %w", err)
}
