package app

import (
	"crypto/tls"
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/client-go/util/cert"

	"github.com/trigate/trigate/gateway/stage"
)

// GatesOptions say where the three services are and how the gateway proves to
// them who it is.
type GatesOptions struct {
	// AuthnEndpoint, AuthzEndpoint and AdmissionEndpoint are gRPC targets, or lists
	// of host:port separated by commas.
	AuthnEndpoint     string
	AuthzEndpoint     string
	AdmissionEndpoint string
	// CAFile holds the CAs that the services' certificates, both as servers and as
	// clients of this gateway, are verified with.
	CAFile string
	// ClientCertFile and ClientKeyFile are the certificate by which the services
	// know the gateway.
	ClientCertFile string
	ClientKeyFile  string
	// DecisionCacheEntries and DecisionCacheBytes bound the decisions of authz that
	// are kept. Either 0: none is kept.
	DecisionCacheEntries int
	DecisionCacheBytes   int64
	// AdmissionSkip is whether calls of admission that nobody is interested in are left
	// out.
	AdmissionSkip bool
}

// NewGatesOptions returns the defaults: the services on their usual ports of this
// machine.
func NewGatesOptions() *GatesOptions {
	return &GatesOptions{
		AuthnEndpoint:     "127.0.0.1:7441",
		AuthzEndpoint:     "127.0.0.1:7442",
		AdmissionEndpoint: "127.0.0.1:7443",

		DecisionCacheEntries: 100_000,
		DecisionCacheBytes:   64 << 20,
		AdmissionSkip:        true,
	}
}

// AddFlags binds the options to flags.
func (o *GatesOptions) AddFlags(fs *pflag.FlagSet) {
	const endpoint = "A gRPC target (dns:///host:port, host:port), or several host:port separated by commas."
	fs.StringVar(&o.AuthnEndpoint, "authn-endpoint", o.AuthnEndpoint,
		"Where trigate-authn listens. "+endpoint)
	fs.StringVar(&o.AuthzEndpoint, "authz-endpoint", o.AuthzEndpoint,
		"Where trigate-authz listens. "+endpoint)
	fs.StringVar(&o.AdmissionEndpoint, "admission-endpoint", o.AdmissionEndpoint,
		"Where trigate-admission listens. "+endpoint)
	fs.StringVar(&o.CAFile, "gates-ca-file", o.CAFile,
		"File with the CAs that sign the certificates of the services. Read anew when it changes.")
	fs.StringVar(&o.ClientCertFile, "gates-client-cert-file", o.ClientCertFile,
		"File with the certificate by which the services know this gateway. Read anew when it changes.")
	fs.StringVar(&o.ClientKeyFile, "gates-client-key-file", o.ClientKeyFile,
		"File with the key of --gates-client-cert-file.")
	fs.IntVar(&o.DecisionCacheEntries, "decision-cache-entries", o.DecisionCacheEntries,
		"How many decisions of trigate-authz to keep at most, each until a change of the policy concerns it. 0 keeps none.")
	fs.Int64Var(&o.DecisionCacheBytes, "decision-cache-bytes", o.DecisionCacheBytes,
		"How much memory the kept decisions may take at most, about. 0 keeps none.")
	fs.BoolVar(&o.AdmissionSkip, "admission-skip", o.AdmissionSkip,
		"Leave out calls of trigate-admission on which none of its plugins, webhooks and policies could act at the moment.")
}

// Validate returns everything that is wrong with the options.
func (o *GatesOptions) Validate() []error {
	var errs []error
	for _, required := range []struct{ flag, value string }{
		{"--authn-endpoint", o.AuthnEndpoint},
		{"--authz-endpoint", o.AuthzEndpoint},
		{"--admission-endpoint", o.AdmissionEndpoint},
		{"--gates-ca-file", o.CAFile},
		{"--gates-client-cert-file", o.ClientCertFile},
		{"--gates-client-key-file", o.ClientKeyFile},
	} {
		if required.value == "" {
			errs = append(errs, fmt.Errorf("%s: required", required.flag))
		}
	}
	if o.CAFile != "" {
		if _, err := cert.NewPool(o.CAFile); err != nil {
			errs = append(errs, fmt.Errorf("--gates-ca-file: %w", err))
		}
	}
	if o.ClientCertFile != "" && o.ClientKeyFile != "" {
		if _, err := tls.LoadX509KeyPair(o.ClientCertFile, o.ClientKeyFile); err != nil {
			errs = append(errs, fmt.Errorf("--gates-client-cert-file %s, --gates-client-key-file %s: %w", o.ClientCertFile, o.ClientKeyFile, err))
		}
	}
	if o.DecisionCacheEntries < 0 {
		errs = append(errs, fmt.Errorf("--decision-cache-entries: %d is negative", o.DecisionCacheEntries))
	}
	if o.DecisionCacheBytes < 0 {
		errs = append(errs, fmt.Errorf("--decision-cache-bytes: %d is negative", o.DecisionCacheBytes))
	}
	return errs
}

// config returns what the stages need of the options.
func (o *GatesOptions) config() stage.GatesConfig {
	return stage.GatesConfig{
		AuthnEndpoint:     o.AuthnEndpoint,
		AuthzEndpoint:     o.AuthzEndpoint,
		AdmissionEndpoint: o.AdmissionEndpoint,
		CAFile:            o.CAFile,
		ClientCertFile:    o.ClientCertFile,
		ClientKeyFile:     o.ClientKeyFile,

		DecisionCacheEntries: o.DecisionCacheEntries,
		DecisionCacheBytes:   o.DecisionCacheBytes,
		AdmissionSkip:        o.AdmissionSkip,
	}
}
