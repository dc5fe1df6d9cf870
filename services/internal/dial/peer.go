package dial

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
)

// Peer says where one of Trigate's services is, and how the caller proves to it who
// it is. The client packages of the services take it as their configuration.
type Peer struct {
	// Endpoint is a gRPC target, or a list of host:port with commas between.
	Endpoint string
	// CAFile has the CAs that sign the service's certificate.
	CAFile string
	// CertFile and KeyFile are the caller's certificate. Both empty: none is shown.
	CertFile, KeyFile string
	// Registerer gets the client's metrics. Nil: they go nowhere.
	Registerer prometheus.Registerer
	// TracerProvider gets a span of each call that belongs to a trace. Nil: none.
	TracerProvider trace.TracerProvider
}

// Service is what a service's client package knows of its service.
type Service struct {
	// Name is the service's, in errors and logs ("authz").
	Name string
	// ServerName is the name in its certificate ("trigate-authz").
	ServerName string
	// Budgets are the longest deadlines of its methods.
	Budgets map[string]time.Duration
	// SafeMethods are those of its methods that may be retried.
	SafeMethods []string
}

// NewPeer makes a connection to service at peer. See New.
func NewPeer(peer Peer, service Service) (*Conn, error) {
	return New(Config{
		Name:           service.Name,
		Endpoint:       peer.Endpoint,
		ServerName:     service.ServerName,
		CAFile:         peer.CAFile,
		CertFile:       peer.CertFile,
		KeyFile:        peer.KeyFile,
		Budgets:        service.Budgets,
		SafeMethods:    service.SafeMethods,
		Registerer:     peer.Registerer,
		TracerProvider: peer.TracerProvider,
	})
}

// Link is what a service's client says of the connection that it calls over.
// Its methods may be called concurrently.
type Link interface {
	// Ready returns nil if a replica of the service is connected and SERVING, else an
	// error that says why not. It does not wait.
	Ready() error
	// WaitReady returns nil as soon as Ready does, or an error when ctx ends.
	WaitReady(ctx context.Context) error
	// Status says how the connection is, and asks each replica for its health; that takes
	// a second at most.
	Status(ctx context.Context) Status
	// Calls is what a generated stub calls over.
	Calls() grpc.ClientConnInterface
	// Close ends the connection, if it is the client's own, and all calls on it.
	Close() error
}

var _ Link = (*Conn)(nil)

// Borrowed is the Link of a client whose connection belongs to somebody else, who
// knows its state and closes it.
func Borrowed(name string, conn grpc.ClientConnInterface) Link {
	return borrowed{name: name, conn: conn}
}

type borrowed struct {
	name string
	conn grpc.ClientConnInterface
}

func (b borrowed) Ready() error {
	return fmt.Errorf("the connection to %s is not the client's own", b.name)
}

func (b borrowed) WaitReady(context.Context) error { return b.Ready() }

func (b borrowed) Status(context.Context) Status { return Status{Reason: b.Ready().Error()} }

func (b borrowed) Calls() grpc.ClientConnInterface { return b.conn }

func (b borrowed) Close() error { return nil }
