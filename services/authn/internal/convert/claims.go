package convert

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	apiserverserviceaccount "k8s.io/apiserver/pkg/authentication/serviceaccount"
	kjson "sigs.k8s.io/json"

	"github.com/trigate/trigate/services/internal/rpcerr"
)

// MaxClaimsBytes is how large the claims of a token may be. Clients choose the
// audiences, and kube-apiserver takes as many as there are in a request of 3 MiB.
// The token of such claims fits a gRPC message.
const MaxClaimsBytes = 8 << 20

// ToClaims returns the JSON object of the claims that a TokenGenerator is given.
// As upstream has it, the registered claims win over private claims of the same
// name.
func ToClaims(claims *jwt.Claims, privateClaims any) ([]byte, error) {
	merged := map[string]json.RawMessage{}
	for _, part := range []any{privateClaims, claims} {
		encoded, err := json.Marshal(part)
		if err != nil {
			return nil, fmt.Errorf("encoding claims: %w", err)
		}
		if err := json.Unmarshal(encoded, &merged); err != nil {
			return nil, fmt.Errorf("merging claims: %w", err)
		}
	}
	return json.Marshal(merged)
}

// Claims are the claims of a service-account token. Their JSON is upstream's.
// They are read strictly: what is signed is what was checked, and nothing else.
type Claims struct {
	Issuer     json.RawMessage  `json:"iss,omitempty"`
	Subject    string           `json:"sub,omitempty"`
	Audience   Audience         `json:"aud,omitempty"`
	Expiry     *int64           `json:"exp,omitempty"`
	NotBefore  *int64           `json:"nbf,omitempty"`
	IssuedAt   *int64           `json:"iat,omitempty"`
	ID         string           `json:"jti,omitempty"`
	Kubernetes KubernetesClaims `json:"kubernetes.io,omitempty"`
}

// Audience is one audience or several, as RFC 7519 has it.
type Audience []string

// UnmarshalJSON reads what upstream reads, and names the claim in its error.
func (a *Audience) UnmarshalJSON(data []byte) error {
	if err := (*jwt.Audience)(a).UnmarshalJSON(data); err != nil {
		return rpcerr.InvalidArgument("claims.aud", "is neither a string nor a list of strings")
	}
	return nil
}

// KubernetesClaims are the private claims, as
// k8s.io/kubernetes/pkg/serviceaccount has them. A claim that is not here would
// be one that this service cannot verify later, so it does not sign it.
type KubernetesClaims struct {
	Namespace                      string              `json:"namespace,omitempty"`
	ServiceAccount                 Reference           `json:"serviceaccount,omitempty"`
	Pod                            *Reference          `json:"pod,omitempty"`
	Secret                         *Reference          `json:"secret,omitempty"`
	Node                           *Reference          `json:"node,omitempty"`
	ValidatingWebhookConfiguration *Reference          `json:"validatingwebhookconfiguration,omitempty"`
	MutatingWebhookConfiguration   *Reference          `json:"mutatingwebhookconfiguration,omitempty"`
	Attestations                   map[string][]string `json:"attestations,omitempty"`
	WarnAfter                      *int64              `json:"warnafter,omitempty"`
}

// Reference names one object.
type Reference struct {
	Name string `json:"name,omitempty"`
	UID  string `json:"uid,omitempty"`
}

// FromClaims reads the claims of a service-account token. An error is an
// InvalidArgument that names the claim.
func FromClaims(data []byte) (*Claims, error) {
	if len(data) > MaxClaimsBytes {
		return nil, rpcerr.InvalidArgument("claims", "are of %d bytes, more than %d", len(data), MaxClaimsBytes)
	}
	if !utf8.Valid(data) {
		return nil, rpcerr.InvalidArgument("claims", "are not valid UTF-8")
	}
	claims := &Claims{}
	strict, err := kjson.UnmarshalStrict(data, claims, kjson.DisallowDuplicateFields, kjson.DisallowUnknownFields)
	if err != nil {
		return nil, malformed(err)
	}
	if len(strict) > 0 {
		return nil, rpcerr.InvalidArgument("claims", "%v", strict[0])
	}
	if err := claims.check(); err != nil {
		return nil, err
	}
	return claims, nil
}

// malformed names the claim that is of another type, if it is that.
func malformed(err error) error {
	if e, ok := rpcerr.As(err); ok {
		return e
	}
	var typeError *json.UnmarshalTypeError
	if errors.As(err, &typeError) && typeError.Field != "" {
		return rpcerr.InvalidArgument("claims."+typeError.Field, "is a %s", typeError.Value)
	}
	return rpcerr.InvalidArgument("claims", "%v", err)
}

// check reports the first claim that no service-account token has.
func (c *Claims) check() error {
	switch {
	case len(c.Issuer) > 0:
		return rpcerr.InvalidArgument("claims.iss", "is set by the service")
	case c.Kubernetes.Namespace == "":
		return rpcerr.InvalidArgument("claims.kubernetes.io.namespace", "is missing")
	case c.Kubernetes.ServiceAccount.Name == "":
		return rpcerr.InvalidArgument("claims.kubernetes.io.serviceaccount.name", "is missing")
	case c.Kubernetes.ServiceAccount.UID == "":
		return rpcerr.InvalidArgument("claims.kubernetes.io.serviceaccount.uid", "is missing")
	}
	if err := c.checkSubject(); err != nil {
		return err
	}
	// An audience may be empty: upstream signs that too.
	if len(c.Audience) == 0 {
		return rpcerr.InvalidArgument("claims.aud", "is missing")
	}
	if err := c.checkTimes(); err != nil {
		return err
	}
	return c.Kubernetes.checkBindings()
}

func (c *Claims) checkSubject() error {
	namespace, name, err := apiserverserviceaccount.SplitUsername(c.Subject)
	if err != nil {
		return rpcerr.InvalidArgument("claims.sub", "is no service account's name")
	}
	if namespace != c.Kubernetes.Namespace || name != c.Kubernetes.ServiceAccount.Name {
		return rpcerr.InvalidArgument("claims.sub", "is not the service account that kubernetes.io names")
	}
	return nil
}

func (c *Claims) checkTimes() error {
	switch {
	case c.IssuedAt == nil || *c.IssuedAt <= 0:
		return rpcerr.InvalidArgument("claims.iat", "is missing or not after 1970")
	case c.Expiry == nil || *c.Expiry <= *c.IssuedAt:
		return rpcerr.InvalidArgument("claims.exp", "is missing or not after iat")
	case c.NotBefore != nil && (*c.NotBefore <= 0 || *c.NotBefore >= *c.Expiry):
		return rpcerr.InvalidArgument("claims.nbf", "is not between 1970 and exp")
	}
	return nil
}

// checkBindings holds the claims to what upstream's serviceaccount.Claims makes:
// one bound object, and beside a pod the node that it runs on, of which the UID
// may be unknown.
func (k *KubernetesClaims) checkBindings() error {
	var bound []string
	for _, b := range []struct {
		claim     string
		reference *Reference
	}{
		{"pod", k.Pod},
		{"secret", k.Secret},
		{"node", k.Node},
		{"validatingwebhookconfiguration", k.ValidatingWebhookConfiguration},
		{"mutatingwebhookconfiguration", k.MutatingWebhookConfiguration},
	} {
		if b.reference == nil {
			continue
		}
		claim, beside := "claims.kubernetes.io."+b.claim, b.claim == "node" && k.Pod != nil
		switch {
		case b.reference.Name == "":
			return rpcerr.InvalidArgument(claim+".name", "is missing")
		case b.reference.UID == "" && !beside:
			return rpcerr.InvalidArgument(claim+".uid", "is missing")
		case beside:
			continue
		}
		if bound = append(bound, b.claim); len(bound) > 1 {
			return rpcerr.InvalidArgument(claim, "a token is bound to one object, and this one to a %s already", bound[0])
		}
	}
	return nil
}

// Lifetime is the time from iat to exp.
func (c *Claims) Lifetime() time.Duration {
	seconds := *c.Expiry - *c.IssuedAt
	if seconds > int64(maxLifetime/time.Second) {
		return maxLifetime
	}
	return time.Duration(seconds) * time.Second
}

// maxLifetime is the longest time.Duration.
const maxLifetime = time.Duration(1<<63 - 1)

// Registered returns the registered claims, as a TokenGenerator takes them.
func (c *Claims) Registered() *jwt.Claims {
	return &jwt.Claims{
		Subject:   c.Subject,
		Audience:  jwt.Audience(c.Audience),
		Expiry:    (*jwt.NumericDate)(c.Expiry),
		NotBefore: (*jwt.NumericDate)(c.NotBefore),
		IssuedAt:  (*jwt.NumericDate)(c.IssuedAt),
		ID:        c.ID,
	}
}

// Private returns the private claims, as a TokenGenerator takes them.
func (c *Claims) Private() any {
	return struct {
		Kubernetes KubernetesClaims `json:"kubernetes.io,omitempty"`
	}{c.Kubernetes}
}
