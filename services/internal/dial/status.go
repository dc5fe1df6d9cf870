package dial

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/resolver"
)

const (
	// healthUnreachable is the health of a replica that does not answer; the others are
	// those of grpc.health.v1.
	healthUnreachable = "UNREACHABLE"
	// replicaProbeTimeout bounds how long a replica is asked for its health.
	replicaProbeTimeout = time.Second
	// maxReplicaProbes bounds how many replicas are asked; of the others nothing is told.
	maxReplicaProbes = 64
)

// Status is how a connection is.
type Status struct {
	// Endpoint is what was configured, Target the gRPC target that it stands for.
	Endpoint, Target string
	// State is gRPC's connectivity state (READY, CONNECTING, TRANSIENT_FAILURE, IDLE,
	// SHUTDOWN). It is READY if a replica is connected and SERVING.
	State string
	// Reason says why calls would fail. Empty if they would not.
	Reason string
	// Replicas are the addresses that the endpoint was last resolved to, sorted.
	Replicas []Replica
}

// Replica is one address of a service.
type Replica struct {
	// Address is the replica's, host:port.
	Address string
	// Health is SERVING, NOT_SERVING, another word of grpc.health.v1, or UNREACHABLE.
	Health string
}

// Status says how the connection is, and asks each replica for its health over a
// connection of its own, so that those which get no calls are told of too.
func (c *Conn) Status(ctx context.Context) Status {
	s := Status{Endpoint: c.endpoint, Target: c.grpc.Target(), State: c.grpc.GetState().String()}
	if s.State != connectivity.Ready.String() {
		// What the transport says of it is for the log.
		s.Reason = "no replica is connected and SERVING"
	}
	ctx, cancel := context.WithTimeout(ctx, replicaProbeTimeout)
	defer cancel()
	for _, address := range c.addresses.list() {
		s.Replicas = append(s.Replicas, Replica{Address: address, Health: healthUnreachable})
	}
	var wg sync.WaitGroup
	for i := range s.Replicas[:min(len(s.Replicas), maxReplicaProbes)] {
		wg.Go(func() { s.Replicas[i].Health = c.healthOf(ctx, s.Replicas[i].Address) })
	}
	wg.Wait()
	return s
}

// Calls returns the connection.
func (c *Conn) Calls() grpc.ClientConnInterface { return c }

func (c *Conn) healthOf(ctx context.Context, address string) string {
	cc, err := grpc.NewClient("passthrough:///"+address, c.probe...)
	if err != nil {
		return healthUnreachable
	}
	defer func() { _ = cc.Close() }() // Only reports that it is closed already.
	response, err := healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return healthUnreachable
	}
	return response.GetStatus().String()
}

// addresses are what a resolver said last.
type addresses struct {
	mu   sync.Mutex
	last []string
}

func (a *addresses) list() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.last)
}

func (a *addresses) set(state resolver.State) {
	var found []string
	for _, endpoint := range state.Endpoints {
		for _, address := range endpoint.Addresses {
			found = append(found, address.Addr)
		}
	}
	if len(state.Endpoints) == 0 {
		for _, address := range state.Addresses {
			found = append(found, address.Addr)
		}
	}
	slices.SortFunc(found, strings.Compare)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = slices.Compact(found)
}

// recordingBuilder notes what the resolvers that it builds find.
type recordingBuilder struct {
	resolver.Builder
	addresses *addresses
}

var _ resolver.Builder = (*recordingBuilder)(nil)

// Build implements resolver.Builder.
func (b *recordingBuilder) Build(target resolver.Target, cc resolver.ClientConn, opts resolver.BuildOptions) (resolver.Resolver, error) {
	return b.Builder.Build(target, &recordingConn{ClientConn: cc, addresses: b.addresses}, opts)
}

type recordingConn struct {
	resolver.ClientConn
	addresses *addresses
}

// UpdateState implements resolver.ClientConn.
func (c *recordingConn) UpdateState(state resolver.State) error {
	c.addresses.set(state)
	return c.ClientConn.UpdateState(state)
}
