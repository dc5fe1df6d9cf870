// Package dial makes the gRPC connections between Trigate's processes: mutual
// TLS with certificates that follow their files, a deadline for every call,
// retries of what is safe to retry, and balancing over replicas that say they
// are SERVING.
//
// Calls fail fast: while no replica serves, a call is Unavailable at once, or
// after a few short retries if it is safe. What the caller gets is always an
// *rpcerr.Error.
package dial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	_ "google.golang.org/grpc/health" // client-side health checking
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver/dns"

	"github.com/trigate/trigate/services/internal/mtls"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// DefaultMaxMessageBytes is what package serve allows by default.
const DefaultMaxMessageBytes = 16 << 20

const (
	// connectBaseDelay and connectMaxDelay bound the pause between attempts to
	// connect. They are short: requests wait for the gates to come back.
	connectBaseDelay = 50 * time.Millisecond
	connectMaxDelay  = time.Second
	// connectTimeout bounds one attempt to connect. gRPC's default of 20 s would
	// have calls wait that long for a replica that vanished without a trace.
	connectTimeout = 3 * time.Second
	// keepaliveTime and keepaliveTimeout bound how long calls go to a replica
	// that vanished. The server allows pings more often than that.
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 3 * time.Second
	// resolutionInterval is how often names are looked up anew at most, which happens
	// when a connection ends. gRPC's default of 30 s is longer than it takes to replace
	// all replicas of a service one by one: none of those known would be left.
	resolutionInterval = time.Second
	// streamWindow and connectionWindow are how many bytes a server may have sent that
	// nobody has read. gRPC would find them out by a ping with every message, which costs
	// as much as a small call itself.
	streamWindow     = 1 << 20
	connectionWindow = 4 << 20
	// readyProbeTimeout bounds how long Ready asks why there is no replica.
	readyProbeTimeout = time.Second
)

// Config is what New needs.
type Config struct {
	// Name is the called service's name in errors and logs ("authz").
	Name string
	// Endpoint is a gRPC target (dns:///host:port, host:port), or a list of
	// host:port with commas between.
	Endpoint string
	// ServerName is the name in the server's certificate, whatever its address.
	ServerName string
	// CAFile has the CAs that sign the server's certificate.
	CAFile string
	// CertFile and KeyFile are shown to the server. Both empty: nothing is.
	CertFile, KeyFile string

	// Budgets are the longest deadlines of calls, by full method. A unary method
	// that is not in it has DefaultBudget, a stream none.
	Budgets map[string]time.Duration
	// SafeMethods are the full methods that may be retried: those with
	// idempotency_level NO_SIDE_EFFECTS.
	SafeMethods []string
	// MaxMessageBytes limits messages both ways. 0: DefaultMaxMessageBytes.
	MaxMessageBytes int
	// Registerer gets the client's metrics. Nil: they go nowhere.
	Registerer prometheus.Registerer
	// TracerProvider gets a span of each call that belongs to a trace. Nil: none.
	TracerProvider trace.TracerProvider
	// Dialer replaces the network in tests. Nil: TCP.
	Dialer func(ctx context.Context, address string) (net.Conn, error)
}

// setResolutionInterval tells gRPC, which has one interval for the whole process, before
// the first name is looked up.
var setResolutionInterval = sync.OnceFunc(func() { dns.SetMinResolutionInterval(resolutionInterval) })

// Conn is a connection to all replicas of a service. It connects by itself,
// and again after a failure, until it is closed. It is safe for concurrent use.
type Conn struct {
	name     string
	endpoint string
	grpc     *grpc.ClientConn
	// addresses are those that the endpoint was last resolved to.
	addresses *addresses
	// probe are the options of a connection to one replica.
	probe []grpc.DialOption
}

var _ grpc.ClientConnInterface = (*Conn)(nil)

// New makes a connection and starts to connect, without waiting for it. An
// error is a mistake in the configuration, and names the file or the endpoint.
// The caller closes the connection.
func New(cfg Config) (*Conn, error) {
	if cfg.Registerer == nil {
		cfg.Registerer = prometheus.NewRegistry()
	}
	if cfg.MaxMessageBytes == 0 {
		cfg.MaxMessageBytes = DefaultMaxMessageBytes
	}
	target, builder, err := targetOf(cfg.Name, cfg.Endpoint)
	if err != nil {
		return nil, err
	}
	probe, err := transportOptions(cfg)
	if err != nil {
		return nil, err
	}
	options, err := callOptions(cfg)
	if err != nil {
		return nil, err
	}
	c := &Conn{name: cfg.Name, endpoint: cfg.Endpoint, addresses: &addresses{}, probe: probe}
	options = append(options, grpc.WithResolvers(&recordingBuilder{Builder: builder, addresses: c.addresses}))
	setResolutionInterval()
	if c.grpc, err = grpc.NewClient(target, append(options, probe...)...); err != nil {
		return nil, fmt.Errorf("endpoint %s of %s: %w", cfg.Endpoint, cfg.Name, err)
	}
	c.grpc.Connect()
	return c, nil
}

// transportOptions are those by which a replica is reached.
func transportOptions(cfg Config) ([]grpc.DialOption, error) {
	tlsConfig := mtls.ClientConfig{ServerName: cfg.ServerName}
	var err error
	if tlsConfig.ServerCAs, err = mtls.NewBundle(cfg.CAFile); err != nil {
		return nil, err
	}
	if cfg.CertFile != "" || cfg.KeyFile != "" {
		if tlsConfig.Client, err = mtls.NewKeyPair(cfg.CertFile, cfg.KeyFile); err != nil {
			return nil, err
		}
	}
	creds, err := mtls.ClientCredentials(tlsConfig)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", cfg.Name, err)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithAuthority(cfg.ServerName),
		grpc.WithDisableServiceConfig(), // what DNS says of it
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connectionWindow),
	}
	if cfg.Dialer != nil {
		options = append(options, grpc.WithContextDialer(cfg.Dialer))
	}
	return options, nil
}

// callOptions are those by which calls are spread over the replicas, bounded, retried
// and counted.
func callOptions(cfg Config) ([]grpc.DialOption, error) {
	serviceConfig, err := serviceConfigJSON(cfg.SafeMethods)
	if err != nil {
		return nil, err
	}
	layers, err := newLayers(cfg)
	if err != nil {
		return nil, err
	}
	options := []grpc.DialOption{
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: connectBaseDelay, Multiplier: 1.6, Jitter: 0.2, MaxDelay: connectMaxDelay},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: keepaliveTime, Timeout: keepaliveTimeout, PermitWithoutStream: true,
		}),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(cfg.MaxMessageBytes),
			grpc.MaxCallSendMsgSize(cfg.MaxMessageBytes),
			// Of a larger message no copy would be kept to send it once more.
			grpc.MaxRetryRPCBufferSize(cfg.MaxMessageBytes),
		),
		grpc.WithChainUnaryInterceptor(layers.unary),
		grpc.WithChainStreamInterceptor(layers.stream),
	}
	if cfg.TracerProvider != nil {
		options = append(options, grpc.WithStatsHandler(newTracer(cfg.TracerProvider)))
	}
	return options, nil
}

// Invoke performs a unary call. Its error is an *rpcerr.Error.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.grpc.Invoke(ctx, method, args, reply, opts...)
}

// NewStream begins a stream. Its errors, and those of the stream, are
// *rpcerr.Error, but for io.EOF at its end.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.grpc.NewStream(ctx, desc, method, opts...)
}

// Ready returns nil if a replica is connected and SERVING, else an error that
// says why not. It does not wait for a connection.
func (c *Conn) Ready() error {
	state := c.grpc.GetState()
	switch state {
	case connectivity.Ready:
		return nil
	case connectivity.Idle:
		c.grpc.Connect()
	case connectivity.TransientFailure:
		// A call fails at once, with the reason of the last failure.
		ctx, cancel := context.WithTimeout(context.Background(), readyProbeTimeout)
		defer cancel()
		_, err := healthpb.NewHealthClient(c.grpc).Check(ctx, &healthpb.HealthCheckRequest{})
		if err != nil {
			return fmt.Errorf("no replica of %s at %s serves: %w", c.name, c.endpoint, reasonOf(err))
		}
	}
	return fmt.Errorf("no replica of %s at %s serves yet: the connection is %s", c.name, c.endpoint, state)
}

// WaitReady returns nil as soon as Ready does, or an error when ctx ends.
func (c *Conn) WaitReady(ctx context.Context) error {
	for {
		state := c.grpc.GetState()
		if state == connectivity.Ready {
			return nil
		}
		if state == connectivity.Idle {
			c.grpc.Connect()
		}
		if !c.grpc.WaitForStateChange(ctx, state) {
			return errors.Join(c.Ready(), ctx.Err())
		}
	}
}

// Close ends the connection and all calls on it.
func (c *Conn) Close() error { return c.grpc.Close() }

// reasonOf returns what the transport said.
func reasonOf(err error) error {
	if e, ok := rpcerr.As(err); ok && e.Unwrap() != nil {
		return e.Unwrap()
	}
	return err
}
