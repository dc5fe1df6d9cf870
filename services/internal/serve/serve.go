// Package serve builds the gRPC server of each of Trigate's services: TLS with
// certificates that follow their files, who may call what, health, and an
// orderly end.
//
// There is one way to start and stop: Server.Run. It owns every goroutine of
// the server and of the tasks it is given, and when it returns, they are gone.
package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/component-base/tracing"

	"github.com/trigate/trigate/services/internal/interceptor"
	"github.com/trigate/trigate/services/internal/mtls"
)

// The parts of the policy that a service writes, and what a handler asks. They
// are those of package interceptor.
type (
	// Policy has a rule for each full method.
	Policy = interceptor.Policy
	// Rule says who may call one method.
	Rule = interceptor.Rule
	// Caller is who made a call.
	Caller = interceptor.Caller
	// Validator says why a request message cannot be used.
	Validator = interceptor.Validator
)

// The identities of Trigate's processes, for Peers.
const (
	PeerGateway   = interceptor.PeerGateway
	PeerAuthn     = interceptor.PeerAuthn
	PeerAuthz     = interceptor.PeerAuthz
	PeerAdmission = interceptor.PeerAdmission
)

// Open lets anybody call, and asks for no credentials.
func Open() Rule { return interceptor.Open() }

// Peers lets the gateways call, the named peers, and people whom the gates
// allow.
func Peers(names ...string) Rule { return interceptor.Peers(names...) }

// CallerFrom returns who made the call whose context it is, and false if the
// context is not that of a call.
func CallerFrom(ctx context.Context) (Caller, bool) { return interceptor.CallerFrom(ctx) }

// AuditIDFrom returns the audit ID of the call, or of the question on a stream, whose
// context it is, or "".
func AuditIDFrom(ctx context.Context) string { return interceptor.AuditIDFrom(ctx) }

// WithQuestion returns the context of one question on a stream of many, which has the
// audit ID that its caller says.
func WithQuestion(ctx context.Context, auditID string) context.Context {
	return interceptor.WithQuestion(ctx, auditID)
}

// LogQuestion writes the line of one question on a stream of many, and returns what the
// caller may see of err: nil for nil.
func LogQuestion(ctx context.Context, auditID string, err error, elapsed time.Duration) *status.Status {
	return interceptor.LogQuestion(ctx, auditID, err, elapsed)
}

// Defaults of Config.
const (
	// DefaultMaxMessageBytes is far above gRPC's 4 MiB: an admission request has
	// an old and a new object, of up to 3 MiB each by the API server's limit.
	DefaultMaxMessageBytes = 16 << 20
	// DefaultMaxConnectionAge makes clients look for new replicas now and then.
	DefaultMaxConnectionAge = 30 * time.Minute
	// DefaultShutdownTimeout is how long calls may take to finish at the end; no
	// unary call has a larger budget.
	DefaultShutdownTimeout = 30 * time.Second

	// maxConnectionAgeGrace is what calls get to finish on a connection that is
	// to go for its age. Watches are cut off then, and reopened.
	maxConnectionAgeGrace = time.Minute
	// keepaliveTime and keepaliveTimeout bound how long a server keeps a
	// connection whose other end vanished.
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 10 * time.Second
	// streamWindow and connectionWindow are how many bytes a client may have sent that
	// nobody has read; package dial has the same of its side.
	streamWindow     = 1 << 20
	connectionWindow = 4 << 20
	// workers is how many goroutines are kept for calls, since a new one has to grow its
	// stack each time. More calls at once have new ones.
	workers = 32
	// keepaliveMinTime is how often a client may ping; package dial pings less
	// often.
	keepaliveMinTime = 5 * time.Second
)

// Config is what New needs. CompletedOptions.ServerConfig fills it from flags.
type Config struct {
	// Name is the service's name in errors: "authn", "authz", "admission".
	Name string
	// Policy has a rule for each method of the services that are registered.
	// Those of health and reflection are added.
	Policy Policy
	// Parts are what must be ready before the server is SERVING, each by a
	// Health.Set.
	Parts []string

	// Listener is where to serve. Run closes it. Nil: Run listens on ListenAddress.
	Listener net.Listener
	// ListenAddress is host:port. Only without a Listener.
	ListenAddress string
	// CertFile and KeyFile are the serving certificate.
	CertFile, KeyFile string
	// PeerCAFile has the CAs that sign the certificates of Trigate's processes.
	PeerCAFile string
	// ClientCAFile has the CAs that sign the certificates of users. "": none.
	ClientCAFile string

	// Tokens authenticates people's bearer tokens; an error for which
	// rpcerr.IsCouldNotDecide holds makes the call Unavailable, any other
	// Unauthenticated. Nil: no tokens.
	Tokens authenticator.Token
	// Authorizer decides what people may call. Nil: only system:masters.
	Authorizer authorizer.UnconditionalAuthorizer
	// Budgets are the deadlines of calls that come without one. A unary method
	// that is not in it has interceptor.DefaultBudget, a stream none.
	Budgets map[string]time.Duration
	// Validators check request messages, by full method.
	Validators map[string]Validator

	// MaxMessageBytes limits what is received; an answer is as large as it is, and
	// the caller's to limit. 0: DefaultMaxMessageBytes.
	MaxMessageBytes int
	// MaxConnectionAge ends connections. 0: DefaultMaxConnectionAge.
	MaxConnectionAge time.Duration
	// ShutdownDelay is how long the server goes on after it has said that it is
	// not SERVING, so that clients turn away first.
	ShutdownDelay time.Duration
	// ShutdownTimeout is how long calls may take to finish then. 0:
	// DefaultShutdownTimeout.
	ShutdownTimeout time.Duration
	// DisableReflection turns server reflection off.
	DisableReflection bool

	// MetricsListener is where /metrics, /livez and /readyz are served in
	// plain HTTP. Run closes it. Nil: Run listens on MetricsListenAddress.
	MetricsListener net.Listener
	// MetricsListenAddress is host:port. "" without a MetricsListener: none.
	MetricsListenAddress string
	// Registerer gets the server's metrics. Nil: they go nowhere.
	Registerer prometheus.Registerer
	// Gatherer has what /metrics shows. Nil: nothing.
	Gatherer prometheus.Gatherer
	// TracerProvider gets a span of each call that belongs to a trace. Run shuts it
	// down. Nil: none.
	TracerProvider tracing.TracerProvider
}

// Server is a gRPC server with its health. Register the services on it, then
// Run it once.
type Server struct {
	cfg    Config
	grpc   *grpc.Server
	health *Health
	policy Policy
	files  []checkedFile
	// draining ends when streams have to end.
	draining  context.Context
	endStream context.CancelFunc
}

var _ grpc.ServiceRegistrar = (*Server)(nil)

// checkedFile is a TLS file that Run looks at now and then, so that a bad one
// is known before the next handshake.
type checkedFile struct {
	// kind is the file's label in metrics.
	kind string
	file interface{ Check() error }
}

// New builds a server, and reads its certificates: an error names the file. It
// opens no socket.
func New(cfg Config) (*Server, error) {
	if cfg.MaxMessageBytes == 0 {
		cfg.MaxMessageBytes = DefaultMaxMessageBytes
	}
	if cfg.MaxConnectionAge == 0 {
		cfg.MaxConnectionAge = DefaultMaxConnectionAge
	}
	if cfg.ShutdownTimeout == 0 {
		cfg.ShutdownTimeout = DefaultShutdownTimeout
	}
	if cfg.Registerer == nil {
		cfg.Registerer = prometheus.NewRegistry()
	}
	s := &Server{cfg: cfg, health: newHealth(cfg.Parts), policy: withOpenServices(cfg)}
	s.draining, s.endStream = context.WithCancel(context.Background())

	tlsOption, err := s.transport()
	if err != nil {
		return nil, err
	}
	layers, err := s.interceptors()
	if err != nil {
		return nil, err
	}
	options := append([]grpc.ServerOption{
		tlsOption,
		grpc.MaxRecvMsgSize(cfg.MaxMessageBytes),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connectionWindow),
		grpc.NumStreamWorkers(workers),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMinTime, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge:      cfg.MaxConnectionAge,
			MaxConnectionAgeGrace: maxConnectionAgeGrace,
			Time:                  keepaliveTime,
			Timeout:               keepaliveTimeout,
		}),
	}, layers...)
	if cfg.TracerProvider != nil {
		options = append(options, grpc.StatsHandler(newTracer(cfg.TracerProvider)))
	}
	s.grpc = grpc.NewServer(options...)
	healthpb.RegisterHealthServer(s.grpc, s.health.server)
	if !cfg.DisableReflection {
		reflection.Register(s.grpc)
	}
	return s, nil
}

// RegisterService registers a service, as the generated Register functions do.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	s.grpc.RegisterService(desc, impl)
}

// Health returns the server's health, of which the parts are to be Set.
func (s *Server) Health() *Health { return s.health }

// CheckPolicy returns an error that names the registered methods without a
// rule. Run calls it, and the test of each service does.
func (s *Server) CheckPolicy() error {
	if missing := s.policy.Missing(s.grpc.GetServiceInfo()); len(missing) > 0 {
		return fmt.Errorf("no policy row for %v", missing)
	}
	return nil
}

// transport reads the TLS files.
func (s *Server) transport() (grpc.ServerOption, error) {
	var tlsConfig mtls.ServerConfig
	var err error
	if tlsConfig.Serving, err = mtls.NewKeyPair(s.cfg.CertFile, s.cfg.KeyFile); err != nil {
		return nil, err
	}
	if tlsConfig.PeerCAs, err = mtls.NewBundle(s.cfg.PeerCAFile); err != nil {
		return nil, err
	}
	s.files = []checkedFile{{"serving", tlsConfig.Serving}, {"peer-ca", tlsConfig.PeerCAs}}
	if s.cfg.ClientCAFile != "" {
		if tlsConfig.ClientCAs, err = mtls.NewBundle(s.cfg.ClientCAFile); err != nil {
			return nil, err
		}
		s.files = append(s.files, checkedFile{"client-ca", tlsConfig.ClientCAs})
	}
	creds, err := mtls.ServerCredentials(tlsConfig)
	if err != nil {
		return nil, err
	}
	if err := s.registerTLSMetrics(tlsConfig.Serving); err != nil {
		return nil, err
	}
	return grpc.Creds(creds), nil
}

// interceptors are the layers around every handler, outermost first.
func (s *Server) interceptors() ([]grpc.ServerOption, error) {
	metrics, err := interceptor.Metrics(s.cfg.Registerer)
	if err != nil {
		return nil, err
	}
	return interceptor.ServerOptions(
		metrics,
		interceptor.Log(),
		interceptor.Recover(),
		interceptor.Allow(interceptor.AllowConfig{Policy: s.policy, Tokens: s.cfg.Tokens, Authorizer: s.cfg.Authorizer}),
		interceptor.Deadline(s.cfg.Name, s.cfg.Budgets),
		interceptor.Drain(s.cfg.Name, s.draining),
		interceptor.Validate(s.cfg.Validators),
	)
}

// withOpenServices adds the rows of the services that serve itself registers.
func withOpenServices(cfg Config) Policy {
	policy := Policy{
		healthpb.Health_Check_FullMethodName: Open(),
		healthpb.Health_List_FullMethodName:  Open(),
		healthpb.Health_Watch_FullMethodName: Open(),
	}
	if !cfg.DisableReflection {
		policy[reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName] = Open()
		policy[reflectionv1alpha.ServerReflection_ServerReflectionInfo_FullMethodName] = Open()
	}
	for method, rule := range cfg.Policy {
		policy[method] = rule
	}
	return policy
}

var (
	errDraining   = errors.New("shutting down")
	errNotStarted = errors.New("not ready: nothing has been reported yet")
)

func serviceNames(services map[string]grpc.ServiceInfo) []string {
	names := make([]string, 0, len(services))
	for name := range services {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
