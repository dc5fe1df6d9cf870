package explain

import (
	"cmp"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	rbacv1helpers "k8s.io/kubernetes/pkg/apis/rbac/v1"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
)

// maxNearMisses is how many near misses an explanation has at most.
const maxNearMisses = 100

// nearMiss is a rule that falls short of an action in one respect.
type nearMiss struct {
	binding   binding
	index     int
	rule      *rbacv1.PolicyRule
	dimension authzv1.Dimension
	distance  distance
}

// distance says how far a near miss is from allowing the action. The nearest rules
// are for the very object, but for another verb; then those for others of its
// kind, for its kind in other namespaces, and for other parts of its kind (pods
// instead of pods/log). The same resource in another API group comes before all
// the other resources, of which there may be many, and paths come last.
type distance int

const (
	otherVerb distance = iota
	otherName
	otherNamespace
	otherSubresource
	otherAPIGroup
	otherResource
	otherPath
)

// nearMisses are those found so far, in the authorizer's order.
type nearMisses []nearMiss

// consider adds a rule that does not allow the action, if it falls short in one
// respect only. For rules of role bindings in other namespaces, that is one.
func (n *nearMisses) consider(a authorizer.Attributes, b binding, index int, rule *rbacv1.PolicyRule, inScope bool) {
	short := shortOf(a, rule)
	if !inScope {
		short = append(short, authzv1.Dimension_DIMENSION_NAMESPACE)
	}
	if len(short) != 1 || !a.IsResourceRequest() && len(rule.NonResourceURLs) == 0 {
		// A rule without paths is about resources: it is not near to any path.
		return
	}
	*n = append(*n, nearMiss{binding: b, index: index, rule: rule, dimension: short[0], distance: distanceOf(a, rule, short[0])})
}

// shortOf returns the respects in which a rule falls short of an action. They are
// those that upstream's RuleAllows joins: if there are none, it allows the action.
func shortOf(a authorizer.Attributes, rule *rbacv1.PolicyRule) []authzv1.Dimension {
	var short []authzv1.Dimension
	check := func(matches bool, dimension authzv1.Dimension) {
		if !matches {
			short = append(short, dimension)
		}
	}
	check(rbacv1helpers.VerbMatches(rule, a.GetVerb()), authzv1.Dimension_DIMENSION_VERB)
	if !a.IsResourceRequest() {
		check(rbacv1helpers.NonResourceURLMatches(rule, a.GetPath()), authzv1.Dimension_DIMENSION_PATH)
		return short
	}
	combined := a.GetResource()
	if a.GetSubresource() != "" {
		combined += "/" + a.GetSubresource()
	}
	check(rbacv1helpers.APIGroupMatches(rule, a.GetAPIGroup()), authzv1.Dimension_DIMENSION_API_GROUP)
	check(rbacv1helpers.ResourceMatches(rule, combined, a.GetSubresource()), authzv1.Dimension_DIMENSION_RESOURCE)
	check(rbacv1helpers.ResourceNameMatches(rule, a.GetName()), authzv1.Dimension_DIMENSION_NAME)
	return short
}

func distanceOf(a authorizer.Attributes, rule *rbacv1.PolicyRule, dimension authzv1.Dimension) distance {
	switch dimension {
	case authzv1.Dimension_DIMENSION_VERB:
		return otherVerb
	case authzv1.Dimension_DIMENSION_NAME:
		return otherName
	case authzv1.Dimension_DIMENSION_NAMESPACE:
		return otherNamespace
	case authzv1.Dimension_DIMENSION_API_GROUP:
		return otherAPIGroup
	case authzv1.Dimension_DIMENSION_RESOURCE:
		samePart := func(resource string) bool {
			kind, _, _ := strings.Cut(resource, "/")
			return kind == a.GetResource()
		}
		if slices.ContainsFunc(rule.Resources, samePart) {
			return otherSubresource
		}
		return otherResource
	}
	return otherPath
}

// nearest returns the near misses that an explanation has, nearest first, and
// those that are equally near in the authorizer's order.
func (n nearMisses) nearest() []nearMiss {
	slices.SortStableFunc(n, func(a, b nearMiss) int { return cmp.Compare(a.distance, b.distance) })
	return n[:min(len(n), maxNearMisses)]
}
