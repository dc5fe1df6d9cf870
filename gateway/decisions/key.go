package decisions

import (
	"encoding/binary"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	authzclient "github.com/trigate/trigate/services/authz/client"
)

// maxKey bounds what is kept for one decision, in bytes. A question whose key is
// longer is asked each time.
const maxKey = 4 << 10

// keys are the keys of the decisions that would answer one question: what all of them
// have in common, then what the narrower ones add. Strings are preceded by their
// lengths, so that no two questions have the same key.
type keys struct {
	// narrow is the key for the same namespace and name. The others begin it.
	narrow []byte
	// common is the length of the key for any namespace, namespaced that for any
	// name.
	common, namespaced int
}

// appendKeys puts the keys into buffer, which may be on the caller's stack.
func appendKeys(buffer []byte, a authorizer.Attributes) keys {
	// Every getter of a record copies it.
	if record, ok := a.(*authorizer.AttributesRecord); ok {
		return appendRecord(buffer, record)
	}
	return appendRecord(buffer, &authorizer.AttributesRecord{
		User: a.GetUser(), Verb: a.GetVerb(), Namespace: a.GetNamespace(), APIGroup: a.GetAPIGroup(), Resource: a.GetResource(),
		Subresource: a.GetSubresource(), Name: a.GetName(), ResourceRequest: a.IsResourceRequest(), Path: a.GetPath(),
	})
}

func appendRecord(buffer []byte, a *authorizer.AttributesRecord) keys {
	b := appendUser(buffer, a.User)
	b = appendString(b, a.Verb)
	if !a.ResourceRequest {
		b = append(b, 0)
		b = appendString(b, a.Path)
	} else {
		b = append(b, 1)
		b = appendString(b, a.APIGroup)
		b = appendString(b, a.Resource)
		b = appendString(b, a.Subresource)
	}
	k := keys{common: len(b)}
	b = appendString(b, a.Namespace)
	k.namespaced = len(b)
	k.narrow = appendString(b, a.Name)
	return k
}

// of returns the key of decisions that are reused so far.
func (k keys) of(reuse authzclient.Reuse) []byte {
	switch reuse {
	case authzclient.ReuseAnyNamespace:
		return k.narrow[:k.common]
	case authzclient.ReuseAnyName:
		return k.narrow[:k.namespaced]
	}
	return k.narrow
}

// beyond returns what the key has on top of the next wider one.
func (k keys) beyond(reuse authzclient.Reuse) []byte {
	switch reuse {
	case authzclient.ReuseAnyNamespace:
		return k.narrow[:k.common]
	case authzclient.ReuseAnyName:
		return k.narrow[k.common:k.namespaced]
	}
	return k.narrow[k.namespaced:]
}

func appendUser(b []byte, u user.Info) []byte {
	b = appendString(b, u.GetName())
	groups := u.GetGroups()
	b = binary.AppendUvarint(b, uint64(len(groups)))
	for _, group := range groups {
		b = appendString(b, group)
	}
	return b
}

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// appendQuestion appends all that a question has, and the policy that its answer has
// to have seen: only questions that are equal in this share one answer in flight.
func appendQuestion(b []byte, a authorizer.Attributes, atLeast authzclient.Revision) []byte {
	b = appendUser(b, a.GetUser())
	b = appendString(b, a.GetUser().GetUID())
	b = appendExtra(b, a.GetUser().GetExtra())
	resource := byte(0)
	if a.IsResourceRequest() {
		resource = 1
	}
	b = append(b, resource)
	for _, s := range []string{
		a.GetVerb(), a.GetNamespace(), a.GetAPIGroup(), a.GetAPIVersion(), a.GetResource(),
		a.GetSubresource(), a.GetName(), a.GetPath(),
	} {
		b = appendString(b, s)
	}
	b = appendSelectors(b, a)
	for _, version := range []uint64{atLeast.ClusterRoles, atLeast.ClusterRoleBindings, atLeast.Roles, atLeast.RoleBindings} {
		b = binary.AppendUvarint(b, version)
	}
	return b
}
