package convert

import (
	"k8s.io/apiserver/pkg/authorization/authorizer"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// Actions are actions on resources, in columns.
type Actions struct {
	verbs, namespaces, apiGroups, apiVersions, resources, subresources, names column
	count                                                                     int
}

// column has one string for each action, or one that is the same in all of them, or none,
// which is the empty string.
type column []string

func (c column) at(i int) string {
	switch len(c) {
	case 0:
		return ""
	case 1:
		return c[0]
	}
	return c[i]
}

// ActionsFromProto returns the actions that a message stands for, most of them at most.
// The field is where the message is in the request ("actions"); an error is an
// InvalidArgument that names the column which does not fit or cannot be read.
func ActionsFromProto(field string, m *authzv1.Actions, most int) (*Actions, error) {
	a := &Actions{}
	columns := [...]struct {
		field string
		sent  []string
		read  *column
	}{
		{".verbs", m.GetVerbs(), &a.verbs},
		{".namespaces", m.GetNamespaces(), &a.namespaces},
		{".api_groups", m.GetApiGroups(), &a.apiGroups},
		{".api_versions", m.GetApiVersions(), &a.apiVersions},
		{".resources", m.GetResources(), &a.resources},
		{".subresources", m.GetSubresources(), &a.subresources},
		{".names", m.GetNames(), &a.names},
	}
	longest := ""
	for _, c := range columns {
		switch n := len(c.sent); {
		case n > most:
			return nil, rpcerr.InvalidArgument(field+c.field, "has %d items, at most %d are accepted", n, most)
		case n > 1 && a.count > 1 && n != a.count:
			return nil, rpcerr.InvalidArgument(field+c.field, "has %d items, and %s has %d", n, field+longest, a.count)
		case n > a.count:
			a.count, longest = n, c.field
		}
	}
	r := newReader(m.GetPercentEncoded())
	for _, c := range columns {
		*c.read = r.column(field, c.field, c.sent)
	}
	if err := r.failure(); err != nil {
		return nil, err
	}
	return a, nil
}

// Len is how many actions there are.
func (a *Actions) Len() int { return a.count }

// Into makes an action, the number of which is below Len, that of a record, and leaves
// out who wants to act.
func (a *Actions) Into(record *authorizer.AttributesRecord, i int) {
	record.ResourceRequest = true
	record.Verb, record.Namespace, record.Name = a.verbs.at(i), a.namespaces.at(i), a.names.at(i)
	record.APIGroup, record.APIVersion = a.apiGroups.at(i), a.apiVersions.at(i)
	record.Resource, record.Subresource = a.resources.at(i), a.subresources.at(i)
}
