package rbactest

import (
	"slices"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/internal/identity"
)

// InColumns reports whether a question can be asked as one of several in columns.
func InColumns(question authorizer.AttributesRecord) bool {
	return question.ResourceRequest && question.Path == "" &&
		question.FieldSelectorRequirements == nil && question.FieldSelectorParsingErr == nil &&
		question.LabelSelectorRequirements == nil && question.LabelSelectorParsingErr == nil
}

// Actions returns the message that asks questions in columns, none of which is longer
// than it has to be. Their users are left out.
func Actions(questions ...authorizer.AttributesRecord) *authzv1.Actions {
	columns := make([][]string, 7)
	for _, q := range questions {
		for i, s := range []string{q.Verb, q.Namespace, q.APIGroup, q.APIVersion, q.Resource, q.Subresource, q.Name} {
			columns[i] = append(columns[i], s)
		}
	}
	enc := identity.NewEncoder(slices.Concat(columns...)...)
	for i, column := range columns {
		distinct := slices.Compact(slices.Clone(column))
		switch {
		case len(distinct) > 1 || i == len(columns)-1: // The names say how many there are.
			columns[i] = enc.Strings(column)
		case len(distinct) == 1 && distinct[0] != "":
			columns[i] = enc.Strings(distinct)
		default:
			columns[i] = nil
		}
	}
	return &authzv1.Actions{
		Verbs: columns[0], Namespaces: columns[1], ApiGroups: columns[2], ApiVersions: columns[3], Resources: columns[4],
		Subresources: columns[5], Names: columns[6], PercentEncoded: enc.Encoded(),
	}
}
