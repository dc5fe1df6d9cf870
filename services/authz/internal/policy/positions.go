package policy

// Resource is one of the four resources that the policy is made of.
type Resource int

// The resources, in the order of Positions.
const (
	// ClusterRoles is clusterroles.
	ClusterRoles Resource = iota
	// ClusterRoleBindings is clusterrolebindings.
	ClusterRoleBindings
	// Roles is roles, of all namespaces.
	Roles
	// RoleBindings is rolebindings, of all namespaces.
	RoleBindings

	resourceCount = int(RoleBindings) + 1
)

// String returns the resource's name in the Kubernetes API.
func (r Resource) String() string {
	return [...]string{"clusterroles", "clusterrolebindings", "roles", "rolebindings"}[r]
}

// Positions says for each resource up to which resourceVersion it was read. All
// four count the same sequence. Zero is before everything.
type Positions [resourceCount]uint64

// Reached reports whether all that other has read was read.
func (p Positions) Reached(other Positions) bool {
	for resource, position := range p {
		if position < other[resource] {
			return false
		}
	}
	return true
}

// Change says what a change of the policy concerns.
type Change struct {
	// Namespace is whose roles or bindings have changed. Empty: cluster roles or
	// their bindings.
	Namespace string
	// Revision has the resourceVersions of the last changes, by resource. What has
	// not changed is zero.
	Revision Positions
}
