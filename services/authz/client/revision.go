package client

import authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"

// Revision says up to which change of the RBAC objects a decision has seen: a
// resourceVersion for each resource. The zero value is before any change.
type Revision struct {
	// ClusterRoles and the others are resourceVersions.
	ClusterRoles, ClusterRoleBindings, Roles, RoleBindings uint64
}

// Covers reports whether r has seen all that other has.
func (r Revision) Covers(other Revision) bool {
	return r.ClusterRoles >= other.ClusterRoles && r.ClusterRoleBindings >= other.ClusterRoleBindings &&
		r.Roles >= other.Roles && r.RoleBindings >= other.RoleBindings
}

// Union returns what has seen all that r or other has.
func (r Revision) Union(other Revision) Revision {
	return Revision{
		ClusterRoles:        max(r.ClusterRoles, other.ClusterRoles),
		ClusterRoleBindings: max(r.ClusterRoleBindings, other.ClusterRoleBindings),
		Roles:               max(r.Roles, other.Roles),
		RoleBindings:        max(r.RoleBindings, other.RoleBindings),
	}
}

// ToProto returns nil for the zero value, which asks for nothing.
func (r Revision) ToProto() *authzv1.PolicyRevision {
	if r == (Revision{}) {
		return nil
	}
	return &authzv1.PolicyRevision{
		ClusterRoles:        r.ClusterRoles,
		ClusterRoleBindings: r.ClusterRoleBindings,
		Roles:               r.Roles,
		RoleBindings:        r.RoleBindings,
	}
}

// RevisionFromProto returns the zero value for nil.
func RevisionFromProto(m *authzv1.PolicyRevision) Revision {
	return Revision{
		ClusterRoles:        m.GetClusterRoles(),
		ClusterRoleBindings: m.GetClusterRoleBindings(),
		Roles:               m.GetRoles(),
		RoleBindings:        m.GetRoleBindings(),
	}
}
