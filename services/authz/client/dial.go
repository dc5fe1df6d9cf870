package client

import (
	"time"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/internal/dial"
)

// authorizeBudget bounds a decision whose caller set no deadline, or a longer
// one. It is kube-apiserver's own bound of a request, so that webhook
// authorizers (30 s for an attempt) get as much time as they would get there.
const authorizeBudget = time.Minute

// rulesBudget is for what needs nobody else.
const rulesBudget = 10 * time.Second

// Config says where the service is, and how the caller proves to it who it is.
type Config = dial.Peer

// Service returns what a connection to the service has to know of it.
func Service() dial.Service {
	return dial.Service{
		Name:       hop,
		ServerName: "trigate-authz",
		Budgets: map[string]time.Duration{
			authzv1.AuthorizationService_Authorize_FullMethodName:      authorizeBudget,
			authzv1.AuthorizationService_BatchAuthorize_FullMethodName: authorizeBudget,
			authzv1.AuthorizationService_Explain_FullMethodName:        authorizeBudget,
			authzv1.AuthorizationService_WhoCan_FullMethodName:         rulesBudget,
			authzv1.AuthorizationService_ListRules_FullMethodName:      rulesBudget,
		},
		SafeMethods: []string{
			authzv1.AuthorizationService_Authorize_FullMethodName,
			authzv1.AuthorizationService_BatchAuthorize_FullMethodName,
			authzv1.AuthorizationService_Explain_FullMethodName,
			authzv1.AuthorizationService_WhoCan_FullMethodName,
			authzv1.AuthorizationService_ListRules_FullMethodName,
		},
	}
}

// Dial returns a client with a connection of its own, to all replicas of the
// service. It does not wait for any of them. Questions go over one stream while there
// is one. An error is a mistake in the configuration, and names the file or the
// endpoint. The caller closes the client.
func Dial(cfg Config) (*Client, error) {
	conn, err := dial.NewPeer(cfg, Service())
	if err != nil {
		return nil, err
	}
	c := New(conn)
	c.Link = conn
	c.shared = newSharedStream(c.stub)
	return c, nil
}

// Close ends the client's connection, if it is its own, and all calls on it.
func (c *Client) Close() error {
	if c.shared != nil {
		defer c.shared.close()
	}
	return c.Link.Close()
}
