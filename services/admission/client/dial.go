package client

import (
	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
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
	conn, err := dial.NewPeer(cfg, Service())
	if err != nil {
		return nil, err
	}
	c := New(conn)
	c.Link = conn
	return c, nil
}

// Service returns what a connection to the service has to know of it.
//
// Both methods may be tried again on another replica when one dies in the middle of a
// call. An API server does the same: it validates inside its storage's retry loop, and
// webhooks have to expect it. A quota that was charged twice that way is counted anew
// by its controller.
func Service() dial.Service {
	return dial.Service{
		Name:       hop,
		ServerName: ServerName,
		Budgets:    Budgets(),
		SafeMethods: []string{
			admissionv1.AdmissionService_Admit_FullMethodName,
			admissionv1.AdmissionService_Validate_FullMethodName,
		},
	}
}

// IsCouldNotDecide reports whether an error of this package says that nothing could
// be decided. Any other error is a rejection.
func IsCouldNotDecide(err error) bool { return rpcerr.IsCouldNotDecide(err) }
