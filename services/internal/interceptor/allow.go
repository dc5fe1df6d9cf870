package interceptor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/klog/v2"

	"github.com/trigate/trigate/services/internal/mtls"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// The identities of Trigate's processes: the common names of their
// certificates, which the peer CA signs.
const (
	// PeerGateway may call every method of every service.
	PeerGateway = "system:trigate:gateway"
	// PeerAuthn is the authentication service.
	PeerAuthn = "system:trigate:authn"
	// PeerAuthz is the authorization service.
	PeerAuthz = "system:trigate:authz"
	// PeerAdmission is the admission service.
	PeerAdmission = "system:trigate:admission"
)

// callerTimeout bounds how long it may take to find out who calls and whether
// they may. Upstream gives a request's authentication as long.
const callerTimeout = 10 * time.Second

// Rule says who may call one method. The zero Rule is Peers().
type Rule struct {
	open  bool
	peers []string
}

// Open lets anybody call, and asks for no credentials.
func Open() Rule { return Rule{open: true} }

// Peers lets the gateways call, the named peers, and people: users whom the
// gates allow the verb "post" on the method's path, and system:masters.
func Peers(names ...string) Rule { return Rule{peers: slices.Clone(names)} }

// Policy has a rule for each full method. A method without one is refused.
type Policy map[string]Rule

// Missing returns the full methods of a server that have no rule, sorted. A
// server with such methods cannot be meant.
func (p Policy) Missing(services map[string]grpc.ServiceInfo) []string {
	var missing []string
	for service, info := range services {
		for _, method := range info.Methods {
			fullMethod := "/" + service + "/" + method.Name
			if _, ok := p[fullMethod]; !ok {
				missing = append(missing, fullMethod)
			}
		}
	}
	slices.Sort(missing)
	return missing
}

// Caller is who made a call. One of its fields is set, or none for a method
// that is open to all.
type Caller struct {
	// Peer is the name of the process of Trigate that calls, or "".
	Peer string
	// User is the person that calls, or nil.
	User user.Info
}

type callerContextKey struct{}

// CallerFrom returns who made the call whose context it is, and false if the
// context is not that of a call that Allow let pass.
func CallerFrom(ctx context.Context) (Caller, bool) {
	caller, ok := ctx.Value(callerContextKey{}).(Caller)
	return caller, ok
}

// WithCaller returns a context that says who calls. Only Allow and tests of
// handlers use it.
func WithCaller(ctx context.Context, caller Caller) context.Context {
	return context.WithValue(ctx, callerContextKey{}, caller)
}

// AllowConfig is what Allow decides by.
type AllowConfig struct {
	// Policy has the rule of each method.
	Policy Policy
	// Tokens authenticates people's bearer tokens. An error for which
	// rpcerr.IsCouldNotDecide holds makes the call Unavailable; any other is
	// the verdict that the token is bad. Nil: no token is accepted.
	Tokens authenticator.Token
	// Authorizer decides what people may call. Nil: only system:masters.
	Authorizer authorizer.UnconditionalAuthorizer
}

// Allow refuses calls that the policy does not let pass, and puts the Caller
// into the context of the others.
func Allow(cfg AllowConfig) Interceptor {
	return New("allow", func(ctx context.Context, call *Call, next func(context.Context) error) error {
		caller, err := cfg.admit(ctx, call.FullMethod)
		if err != nil {
			return err
		}
		ctx = WithCaller(ctx, caller)
		return next(klog.NewContext(ctx, klog.FromContext(ctx).WithValues("caller", caller.name())))
	})
}

func (c Caller) name() string {
	if c.User != nil {
		return c.User.GetName()
	}
	return c.Peer
}

func (cfg AllowConfig) admit(ctx context.Context, fullMethod string) (Caller, error) {
	rule, ok := cfg.Policy[fullMethod]
	if !ok {
		return Caller{}, rpcerr.PermissionDenied("nobody may call " + fullMethod)
	}
	identity, _ := mtls.FromContext(ctx)
	peer := Caller{Peer: identity.Peer}
	if rule.open {
		return peer, nil
	}
	if peer.Peer == PeerGateway || slices.Contains(rule.peers, peer.Peer) && peer.Peer != "" {
		return peer, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callerTimeout)
	defer cancel()
	person, err := cfg.authenticate(ctx, identity)
	if err != nil {
		return Caller{}, err
	}
	if person == nil {
		if peer.Peer != "" {
			return Caller{}, rpcerr.PermissionDenied(fmt.Sprintf("%s may not call %s", peer.Peer, fullMethod))
		}
		return Caller{}, rpcerr.Unauthenticated("a client certificate or a bearer token is needed to call " + fullMethod)
	}
	if err := cfg.authorize(ctx, person, fullMethod); err != nil {
		return Caller{}, err
	}
	return Caller{User: person}, nil
}

// authenticate returns the person that calls, or nil if there is no credential
// of a person. As in kube-apiserver a certificate comes before a token.
func (cfg AllowConfig) authenticate(ctx context.Context, identity mtls.Identity) (user.Info, error) {
	if len(identity.User) > 0 {
		response, ok, err := x509.CommonNameUserConversion(identity.User)
		if err != nil || !ok {
			return nil, rpcerr.Unauthenticated("the client certificate names no user")
		}
		return authenticated(response.User), nil
	}
	token := bearerToken(ctx)
	if token == "" {
		return nil, nil
	}
	if cfg.Tokens == nil {
		return nil, rpcerr.Unauthenticated("bearer tokens are not accepted here")
	}
	response, ok, err := cfg.Tokens.AuthenticateToken(ctx, token)
	switch {
	case err != nil && (rpcerr.IsCouldNotDecide(err) || ctx.Err() != nil):
		return nil, unreachable(ctx, "authn", err)
	case err != nil || !ok:
		// The authenticators' own words may quote the token.
		return nil, rpcerr.Unauthenticated("the bearer token is not valid")
	}
	return authenticated(response.User), nil
}

// unreachable reports that a gate could not be asked about the caller: that is
// no fault of the caller, whatever the gate's own error says.
func unreachable(ctx context.Context, hop string, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return rpcerr.Canceled(err)
	}
	return rpcerr.PeerUnreachable(hop, err)
}

func (cfg AllowConfig) authorize(ctx context.Context, person user.Info, fullMethod string) error {
	if slices.Contains(person.GetGroups(), user.SystemPrivilegedGroup) {
		return nil
	}
	denied := fmt.Sprintf("user %q may not post to %s", person.GetName(), fullMethod)
	if cfg.Authorizer == nil {
		return rpcerr.PermissionDenied(denied)
	}
	decision, reason, err := cfg.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: person,
		Verb: "post",
		Path: fullMethod,
	})
	switch {
	case decision == authorizer.DecisionAllow:
		return nil
	case err != nil:
		return unreachable(ctx, "authz", err)
	case reason != "":
		denied += ": " + reason
	}
	return rpcerr.PermissionDenied(denied)
}

// authenticated puts a person into the group that upstream's request
// authenticators put everybody into whose credential they know.
func authenticated(person user.Info) user.Info {
	groups := person.GetGroups()
	if person.GetName() == user.Anonymous ||
		slices.Contains(groups, user.AllAuthenticated) || slices.Contains(groups, user.AllUnauthenticated) {
		return person
	}
	return &user.DefaultInfo{
		Name:   person.GetName(),
		UID:    person.GetUID(),
		Groups: append(slices.Clone(groups), user.AllAuthenticated),
		Extra:  person.GetExtra(),
	}
}

// bearerToken returns the token of the call's authorization metadata, or "".
// It reads the value as upstream reads the HTTP header.
func bearerToken(ctx context.Context) string {
	values := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(values) == 0 {
		return ""
	}
	scheme, token, _ := strings.Cut(strings.TrimSpace(values[0]), " ")
	if !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	token, _, _ = strings.Cut(token, " ")
	return token
}
