package convert

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
)

// The resources of the objects that identities hang on.
const (
	ServiceAccounts = "serviceaccounts"
	Secrets         = "secrets"
	Pods            = "pods"
	Nodes           = "nodes"
)

// Object is an object that identities hang on, as somebody saw it.
type Object struct {
	// Resource is serviceaccounts, secrets, pods or nodes.
	Resource string
	// Namespace is empty for nodes.
	Namespace, Name string
	// UID is the object's, which no other one ever has.
	UID string
	// ResourceVersion is the one at which the object was seen. 0: it is not known.
	ResourceVersion uint64
}

// Lifetime says how long a verdict on a token holds.
type Lifetime struct {
	// Dependencies are the objects that the verdict hangs on.
	Dependencies []Object
	// KeepUntil is until when the verdict may be kept if none of the dependencies is
	// revoked. Zero: not at all.
	KeepUntil time.Time
	// Configuration is a digest of the authenticators that decided.
	Configuration string
}

// Revocation tells of one object that identities hang on.
type Revocation struct {
	// Object is the object, at the resourceVersion of the change.
	Object Object
	// Deleted is whether the object is gone. If it is not, a verdict that has seen it
	// at this resourceVersion or a later one may still be good.
	Deleted bool
}

// Revocations say where the service is, and what has been revoked of late.
type Revocations struct {
	// Revoked is what has been revoked since the message before.
	Revoked []Revocation
	// Configuration is a digest of the authenticators in force.
	Configuration string
	// Following is whether the service sees changes as they happen.
	Following bool
}

func toObject(object Object) *authnv1.ObjectReference {
	return &authnv1.ObjectReference{
		Resource:        object.Resource,
		Namespace:       object.Namespace,
		Name:            object.Name,
		Uid:             object.UID,
		ResourceVersion: object.ResourceVersion,
	}
}

func fromObject(m *authnv1.ObjectReference) Object {
	return Object{
		Resource:        m.GetResource(),
		Namespace:       m.GetNamespace(),
		Name:            m.GetName(),
		UID:             m.GetUid(),
		ResourceVersion: m.GetResourceVersion(),
	}
}

// fromLifetime returns the fields of a message for a lifetime.
func fromLifetime(l Lifetime) ([]*authnv1.ObjectReference, *timestamppb.Timestamp, string) {
	var dependencies []*authnv1.ObjectReference
	for _, object := range l.Dependencies {
		dependencies = append(dependencies, toObject(object))
	}
	if l.KeepUntil.IsZero() {
		return dependencies, nil, l.Configuration
	}
	return dependencies, timestamppb.New(l.KeepUntil), l.Configuration
}

// toLifetime returns the lifetime that a message has.
func toLifetime(m *authnv1.AuthenticateTokenResponse) (Lifetime, error) {
	l := Lifetime{Configuration: m.GetConfiguration()}
	for _, object := range m.GetDependencies() {
		l.Dependencies = append(l.Dependencies, fromObject(object))
	}
	if until := m.GetKeepUntil(); until != nil {
		if err := until.CheckValid(); err != nil {
			return Lifetime{}, fmt.Errorf("keep_until: %w", err)
		}
		l.KeepUntil = until.AsTime()
	}
	return l, nil
}

// ToRevocations returns the message for revocations.
func ToRevocations(r Revocations) *authnv1.WatchRevocationsResponse {
	m := &authnv1.WatchRevocationsResponse{Configuration: r.Configuration, Following: r.Following}
	for _, revoked := range r.Revoked {
		m.Revocations = append(m.Revocations, &authnv1.Revocation{Object: toObject(revoked.Object), Deleted: revoked.Deleted})
	}
	return m
}

// FromRevocations returns the revocations of a message.
func FromRevocations(m *authnv1.WatchRevocationsResponse) Revocations {
	r := Revocations{Configuration: m.GetConfiguration(), Following: m.GetFollowing()}
	for _, revoked := range m.GetRevocations() {
		r.Revoked = append(r.Revoked, Revocation{Object: fromObject(revoked.GetObject()), Deleted: revoked.GetDeleted()})
	}
	return r
}
