package serve

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/trigate/trigate/services/internal/dial"
	"github.com/trigate/trigate/services/internal/mtls"
)

// Names of the flags: messages start with them.
const (
	flagListenAddress        = "listen-address"
	flagCertFile             = "tls-cert-file"
	flagKeyFile              = "tls-private-key-file"
	flagPeerCAFile           = "peer-ca-file"
	flagClientCAFile         = "client-ca-file"
	flagPeerClientCertFile   = "peer-client-cert-file"
	flagPeerClientKeyFile    = "peer-client-key-file"
	flagKubeconfig           = "kubeconfig"
	flagMetricsListenAddress = "metrics-listen-address"
	flagReflection           = "reflection"
	flagShutdownDelay        = "shutdown-delay"
	// FlagTracingConfigFile is kube-apiserver's.
	FlagTracingConfigFile = "tracing-config-file"
	flagMaxMessageBytes   = "max-message-bytes"
	flagMaxConnectionAge  = "max-connection-age"
)

// Options are the flags that all services share.
type Options struct {
	// ListenAddress is where gRPC is served, host:port.
	ListenAddress string
	// CertFile and KeyFile are the serving certificate.
	CertFile, KeyFile string
	// PeerCAFile verifies the certificates of Trigate's other processes.
	PeerCAFile string
	// ClientCAFile verifies the certificates of users; optional.
	ClientCAFile string
	// PeerClientCertFile and PeerClientKeyFile are shown to the peer services.
	// Empty: the serving certificate.
	PeerClientCertFile, PeerClientKeyFile string
	// Endpoints are the gRPC targets of the peer services, by the peer's short
	// name ("authn"). Each peer that was named to NewOptions has a flag,
	// --NAME-endpoint. An empty endpoint means that the peer is not called.
	Endpoints map[string]string
	// Kubeconfig says how to reach the gateway's Kubernetes API.
	Kubeconfig string
	// MetricsListenAddress is where metrics and health are served in plain
	// HTTP. Empty: nowhere.
	MetricsListenAddress string
	// TracingConfigFile says where to send spans. Empty: nothing is traced.
	TracingConfigFile string
	// Reflection lets callers ask which methods there are.
	Reflection bool
	// ShutdownDelay is how long to go on after saying NOT_SERVING.
	ShutdownDelay time.Duration
	// MaxMessageBytes limits the gRPC messages that are received.
	MaxMessageBytes int
	// MaxConnectionAge is when a connection is ended.
	MaxConnectionAge time.Duration

	peers []string
}

// NewOptions returns the defaults of a service that listens on listenAddress
// and calls the named peers.
func NewOptions(listenAddress string, peers ...string) *Options {
	o := &Options{
		ListenAddress:    listenAddress,
		Endpoints:        map[string]string{},
		Reflection:       true,
		MaxMessageBytes:  DefaultMaxMessageBytes,
		MaxConnectionAge: DefaultMaxConnectionAge,
		peers:            peers,
	}
	return o
}

// AddFlags binds the flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.ListenAddress, flagListenAddress, o.ListenAddress, "HOST:PORT to serve gRPC on.")
	fs.StringVar(&o.CertFile, flagCertFile, o.CertFile,
		"File with the serving certificate, PEM, leaf first. A new content is used without a restart.")
	fs.StringVar(&o.KeyFile, flagKeyFile, o.KeyFile, "File with the private key of --"+flagCertFile+".")
	fs.StringVar(&o.PeerCAFile, flagPeerCAFile, o.PeerCAFile,
		"File with the CAs that sign the certificates of Trigate's own processes, as callers and as the called. They are trusted for nothing else.")
	fs.StringVar(&o.ClientCAFile, flagClientCAFile, o.ClientCAFile,
		"File with the CAs that sign the certificates of users. If set, users with a certificate can call this service as far as the gates allow it.")
	fs.StringVar(&o.PeerClientCertFile, flagPeerClientCertFile, o.PeerClientCertFile,
		"File with the certificate that is shown to the services this one calls. Default: --"+flagCertFile+".")
	fs.StringVar(&o.PeerClientKeyFile, flagPeerClientKeyFile, o.PeerClientKeyFile,
		"File with the private key of --"+flagPeerClientCertFile+". Default: --"+flagKeyFile+".")
	for _, peer := range o.peers {
		fs.Var(endpointValue{o.Endpoints, peer}, peer+"-endpoint",
			"gRPC target of the "+peer+" service (HOST:PORT, dns:///HOST:PORT, or HOST:PORT,HOST:PORT for several replicas).")
	}
	fs.StringVar(&o.Kubeconfig, flagKubeconfig, o.Kubeconfig, "Kubeconfig file that says how to reach the gateway's Kubernetes API.")
	fs.StringVar(&o.MetricsListenAddress, flagMetricsListenAddress, o.MetricsListenAddress,
		"HOST:PORT to serve /metrics, /livez and /readyz on, in plain HTTP, for Prometheus and a kubelet's probes. Off if empty.")
	fs.StringVar(&o.TracingConfigFile, FlagTracingConfigFile, o.TracingConfigFile, ""+
		"File with a TracingConfiguration, as kube-apiserver's, that says where to send the spans of the calls that the gateway traces. "+
		"What is traced is the gateway's to decide, so samplingRatePerMillion has no effect here.")
	fs.BoolVar(&o.Reflection, flagReflection, o.Reflection, "Serve gRPC reflection, which tells anybody which methods there are.")
	fs.DurationVar(&o.ShutdownDelay, flagShutdownDelay, o.ShutdownDelay,
		"How long to go on serving after health says NOT_SERVING, so that clients turn to other replicas first.")
	fs.IntVar(&o.MaxMessageBytes, flagMaxMessageBytes, o.MaxMessageBytes, "Largest gRPC message to receive, in bytes.")
	fs.DurationVar(&o.MaxConnectionAge, flagMaxConnectionAge, o.MaxConnectionAge,
		"Age at which a connection is ended, so that clients find new replicas.")
}

// endpointValue is the flag of one peer's endpoint.
type endpointValue struct {
	endpoints map[string]string
	peer      string
}

func (v endpointValue) String() string         { return v.endpoints[v.peer] }
func (v endpointValue) Set(value string) error { v.endpoints[v.peer] = value; return nil }
func (v endpointValue) Type() string           { return "string" }

// CompletedOptions are options that Complete has filled.
type CompletedOptions struct {
	*completedOptions
}

type completedOptions struct{ Options }

// Complete fills what follows from other options. It opens nothing.
func (o *Options) Complete() CompletedOptions {
	c := *o
	if c.PeerClientCertFile == "" && c.PeerClientKeyFile == "" {
		c.PeerClientCertFile, c.PeerClientKeyFile = c.CertFile, c.KeyFile
	}
	return CompletedOptions{&completedOptions{c}}
}

// Validate returns all that is wrong, each message starting with the flag.
func (o CompletedOptions) Validate() []error {
	var errs []error
	report := func(flag string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	report(flagListenAddress, checkAddress(o.ListenAddress))
	reportPair := func(certFlag, certFile, keyFlag, keyFile string) {
		errCert, errKey := checkFile(certFile, true), checkFile(keyFile, true)
		report(certFlag, errCert)
		report(keyFlag, errKey)
		if errCert == nil && errKey == nil {
			_, err := mtls.NewKeyPair(certFile, keyFile)
			report(certFlag+", --"+keyFlag, err)
		}
	}
	reportPair(flagCertFile, o.CertFile, flagKeyFile, o.KeyFile)
	report(flagPeerCAFile, checkBundle(o.PeerCAFile, true))
	report(flagClientCAFile, checkBundle(o.ClientCAFile, false))
	switch {
	case o.PeerClientCertFile == o.CertFile && o.PeerClientKeyFile == o.KeyFile:
		// the serving certificate, see above
	case o.PeerClientCertFile == "" || o.PeerClientKeyFile == "":
		report(flagPeerClientCertFile, errors.New("is needed together with --"+flagPeerClientKeyFile))
	default:
		reportPair(flagPeerClientCertFile, o.PeerClientCertFile, flagPeerClientKeyFile, o.PeerClientKeyFile)
	}
	for _, peer := range o.peers {
		if endpoint := o.Endpoints[peer]; endpoint != "" {
			report(peer+"-endpoint", dial.CheckEndpoint(endpoint))
		}
	}
	report(flagKubeconfig, checkFile(o.Kubeconfig, false))
	if o.MetricsListenAddress != "" {
		report(flagMetricsListenAddress, checkAddress(o.MetricsListenAddress))
	}
	report(FlagTracingConfigFile, checkFile(o.TracingConfigFile, false))
	if o.ShutdownDelay < 0 {
		report(flagShutdownDelay, fmt.Errorf("%s is negative", o.ShutdownDelay))
	}
	if o.MaxMessageBytes <= 0 {
		report(flagMaxMessageBytes, fmt.Errorf("%d is not above 0", o.MaxMessageBytes))
	}
	if o.MaxConnectionAge <= 0 {
		report(flagMaxConnectionAge, fmt.Errorf("%s is not above 0", o.MaxConnectionAge))
	}
	return errs
}

// ServerConfig returns what the options say of a server. The caller adds the
// policy, the parts, and what it injects.
func (o CompletedOptions) ServerConfig(name string) Config {
	return Config{
		Name:                 name,
		ListenAddress:        o.ListenAddress,
		CertFile:             o.CertFile,
		KeyFile:              o.KeyFile,
		PeerCAFile:           o.PeerCAFile,
		ClientCAFile:         o.ClientCAFile,
		MaxMessageBytes:      o.MaxMessageBytes,
		MaxConnectionAge:     o.MaxConnectionAge,
		ShutdownDelay:        o.ShutdownDelay,
		DisableReflection:    !o.Reflection,
		MetricsListenAddress: o.MetricsListenAddress,
	}
}

// DialConfig returns what the options say of the connection to a peer
// ("authn"), and false if its endpoint is not set. The caller adds the budgets
// and the methods that are safe to retry.
func (o CompletedOptions) DialConfig(peer string) (dial.Config, bool) {
	return dial.Config{
		Name:            peer,
		Endpoint:        o.Endpoints[peer],
		ServerName:      "trigate-" + peer,
		CAFile:          o.PeerCAFile,
		CertFile:        o.PeerClientCertFile,
		KeyFile:         o.PeerClientKeyFile,
		MaxMessageBytes: o.MaxMessageBytes,
	}, o.Endpoints[peer] != ""
}

func checkAddress(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("%q has no port between 0 and 65535", address)
	}
	return nil
}

// checkBundle reports a file that holds no CA certificates.
func checkBundle(path string, required bool) error {
	if err := checkFile(path, required); err != nil || path == "" {
		return err
	}
	_, err := mtls.NewBundle(path)
	return err
}

// checkFile reports a file that cannot be read. What is in it is checked where
// it is used.
func checkFile(path string, required bool) error {
	if path == "" {
		if required {
			return errors.New("is required")
		}
		return nil
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	return file.Close()
}
