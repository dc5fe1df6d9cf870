// Package convert turns what the authentication interfaces of Kubernetes speak
// of into the messages of trigate.authn.v1, and back. The server and the client
// both use it, so that they cannot disagree.
package convert

import (
	"errors"
	"maps"
	"slices"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/internal/identity"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// MaxTokenBytes is the longest token that is looked at: the limit of Go's HTTP
// server for all headers of a request, so no request can have a longer one.
const MaxTokenBytes = 1 << 20

// Verdict is what a token authenticator says of a token, with what it leaves in
// the context of the request beside.
type Verdict struct {
	// Response is the bearer, if the token is good, else nil.
	Response *authenticator.Response
	// Refusal is why the token was refused, and "" if nobody recognised it.
	Refusal string
	// Warnings are for the client, and there only with a Response.
	Warnings []string
	// Annotations are for the audit event, and there only with a Response.
	Annotations map[string]string
	// Lifetime is how long the verdict holds. It is there only with a Response.
	Lifetime Lifetime
}

// ToTokenRequest returns the message that asks about a token. No audiences mean
// those of the Kubernetes API.
func ToTokenRequest(token string, audiences authenticator.Audiences) *authnv1.AuthenticateTokenRequest {
	enc := identity.NewEncoder(append([]string{token}, audiences...)...)
	return &authnv1.AuthenticateTokenRequest{
		Token:          enc.String(token),
		Audiences:      enc.Strings(audiences),
		PercentEncoded: enc.Encoded(),
	}
}

// FromTokenRequest returns the token and the audiences that a message asks
// about. An error is an InvalidArgument that names the field and holds nothing
// of the token.
func FromTokenRequest(m *authnv1.AuthenticateTokenRequest) (string, authenticator.Audiences, error) {
	dec := identity.NewDecoder(m.GetPercentEncoded())
	token := dec.String("token", m.GetToken())
	audiences := dec.Strings("audiences", m.GetAudiences())
	if err := dec.Err(); err != nil {
		return "", nil, err
	}
	if len(token) > MaxTokenBytes {
		return "", nil, rpcerr.InvalidArgument("token", "is of %d bytes, more than %d", len(token), MaxTokenBytes)
	}
	return token, audiences, nil
}

// ToTokenResponse returns the message for a verdict.
func ToTokenResponse(v Verdict) *authnv1.AuthenticateTokenResponse {
	keys := slices.Sorted(maps.Keys(v.Annotations))
	strs := append([]string{v.Refusal}, v.Warnings...)
	for _, key := range keys {
		strs = append(strs, key, v.Annotations[key])
	}
	var audiences authenticator.Audiences
	if v.Response != nil {
		audiences = v.Response.Audiences
	}
	enc := identity.NewEncoder(append(strs, audiences...)...)

	m := &authnv1.AuthenticateTokenResponse{
		Error:          enc.String(v.Refusal),
		Warnings:       enc.Strings(v.Warnings),
		Audiences:      enc.Strings(audiences),
		PercentEncoded: enc.Encoded(),
	}
	if v.Response != nil {
		m.Authenticated = true
		m.User = identity.ToProto(v.Response.User)
		m.Dependencies, m.KeepUntil, m.Configuration = fromLifetime(v.Lifetime)
	}
	for _, key := range keys {
		m.AuditAnnotations = append(m.AuditAnnotations, &authnv1.AuditAnnotation{
			Key:   enc.String(key),
			Value: enc.String(v.Annotations[key]),
		})
	}
	return m
}

// errContradiction is an answer that cannot be a verdict.
var errContradiction = errors.New("the answer contradicts itself: it has a user exactly if the token is good, and a refusal only if it is not")

// FromTokenResponse returns the verdict that a message stands for. An error
// means that the message is none, and that nothing can be concluded from it.
func FromTokenResponse(m *authnv1.AuthenticateTokenResponse) (Verdict, error) {
	if m.GetAuthenticated() != (m.GetUser() != nil) || m.GetAuthenticated() && m.GetError() != "" {
		return Verdict{}, errContradiction
	}
	dec := identity.NewDecoder(m.GetPercentEncoded())
	v := Verdict{
		Refusal:  dec.String("error", m.GetError()),
		Warnings: dec.Strings("warnings", m.GetWarnings()),
	}
	audiences := dec.Strings("audiences", m.GetAudiences())
	for _, annotation := range m.GetAuditAnnotations() {
		if v.Annotations == nil {
			v.Annotations = make(map[string]string, len(m.GetAuditAnnotations()))
		}
		key := dec.String("audit_annotations.key", annotation.GetKey())
		v.Annotations[key] = dec.String("audit_annotations.value", annotation.GetValue())
	}
	if err := dec.Err(); err != nil {
		return Verdict{}, err
	}
	if m.GetAuthenticated() {
		u, err := identity.FromProto("user", m.GetUser())
		if err != nil {
			return Verdict{}, err
		}
		v.Response = &authenticator.Response{User: u, Audiences: audiences}
		if v.Lifetime, err = toLifetime(m); err != nil {
			return Verdict{}, err
		}
	}
	return v, nil
}
