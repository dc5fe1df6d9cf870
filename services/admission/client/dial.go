package client

import (
	"github.com/trigate/trigate/services/internal/dial"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// ServerName is the name in the service's certificate, wherever it runs.
const ServerName = "trigate-admission"

// Config is what Dial needs.
type Config = dial.Peer

// Dial returns a client with a connection of its own, to all replicas of the
// service. It does not wait for any of them. An error is a mistake in the
// configuration, and names the file or the endpoint. The caller closes the client.
func Dial(cfg Config) (*Client, error) {
	conn, err := dial.NewPeer(cfg, dial.Service{Name: hop, ServerName: ServerName, Budgets: Budgets()})
	if err != nil {
		return nil, err
	}
	c := New(conn)
	c.Link = conn
	return c, nil
}

// IsCouldNotDecide reports whether an error of this package says that nothing could
// be decided. Any other error is a rejection.
func IsCouldNotDecide(err error) bool { return rpcerr.IsCouldNotDecide(err) }
