package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/trigate/trigate/services/authz/internal/policy"
	"github.com/trigate/trigate/services/internal/interceptor"
)

// evaluationBuckets reach from a decision by RBAC to one by a slow webhook.
var evaluationBuckets = []float64{1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 1e-4, 1e-3, 0.01, 0.1, 1, 10, 30}

// metrics are the server's own, beside those of its calls.
type metrics struct {
	allow, deny, noOpinion, other prometheus.Observer
	streams                       prometheus.Gauge
}

func newMetrics(registerer prometheus.Registerer, store *policy.Store) (*metrics, error) {
	seconds, err := interceptor.Register(registerer, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "trigate_authz_evaluation_duration_seconds",
		Help:    "Time that the authorizers take for one question, by what they decide.",
		Buckets: evaluationBuckets,
	}, []string{"decision"}))
	if err != nil {
		return nil, err
	}
	streams, err := interceptor.Register(registerer, prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "trigate_authz_policy_streams",
		Help: "Streams that are told of changes of the policy.",
	}))
	if err != nil {
		return nil, err
	}
	if store != nil {
		if err := registerPolicy(registerer, store); err != nil {
			return nil, err
		}
	}
	return &metrics{
		allow:     seconds.WithLabelValues("allow"),
		deny:      seconds.WithLabelValues("deny"),
		noOpinion: seconds.WithLabelValues("no_opinion"),
		other:     seconds.WithLabelValues("unspecified"),
		streams:   streams,
	}, nil
}

// registerPolicy registers where the policy is.
func registerPolicy(registerer prometheus.Registerer, store *policy.Store) error {
	for _, resource := range []policy.Resource{policy.ClusterRoles, policy.ClusterRoleBindings, policy.Roles, policy.RoleBindings} {
		if _, err := interceptor.Register(registerer, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "trigate_authz_policy_revision",
			Help:        "The resourceVersion up to which the policy has been read, by resource.",
			ConstLabels: prometheus.Labels{"resource": resource.String()},
		}, func() float64 { return float64(store.Revision()[resource]) })); err != nil {
			return err
		}
	}
	_, err := interceptor.Register(registerer, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trigate_authz_policy_following",
		Help: "Whether changes of the policy are seen as they happen.",
	}, func() float64 {
		if store.Following() {
			return 1
		}
		return 0
	}))
	return err
}

func (m *metrics) decided(decision authorizer.Decision, duration time.Duration) {
	observer := m.other
	switch decision {
	case authorizer.DecisionAllow:
		observer = m.allow
	case authorizer.DecisionDeny:
		observer = m.deny
	case authorizer.DecisionNoOpinion:
		observer = m.noOpinion
	}
	observer.Observe(duration.Seconds())
}
