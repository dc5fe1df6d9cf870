package serve

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trigate/trigate/services/internal/mtls"
)

// registerTLSMetrics says of each TLS file whether its present content can be
// used, and until when the serving certificate is valid. The files are read
// when the metrics are.
func (s *Server) registerTLSMetrics(serving *mtls.KeyPair) error {
	gauges := []prometheus.Collector{prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "trigate_tls_serving_certificate_expiration_timestamp_seconds",
		Help:        "Unix time at which the serving certificate in force expires.",
		ConstLabels: prometheus.Labels{"service": s.cfg.Name},
	}, func() float64 { return float64(serving.Certificate().Leaf.NotAfter.Unix()) })}
	for _, f := range s.files {
		gauges = append(gauges, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "trigate_tls_file_usable",
			Help:        "1 if what the TLS file holds now is in force, 0 if it is unusable and older content is.",
			ConstLabels: prometheus.Labels{"service": s.cfg.Name, "file": f.kind},
		}, func() float64 {
			if f.file.Check() != nil {
				return 0
			}
			return 1
		}))
	}
	for _, gauge := range gauges {
		// A server of the same name may have run before in this process.
		s.cfg.Registerer.Unregister(gauge)
		if err := s.cfg.Registerer.Register(gauge); err != nil {
			return fmt.Errorf("registering TLS metrics: %w", err)
		}
	}
	return nil
}
