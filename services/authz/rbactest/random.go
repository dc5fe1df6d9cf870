package rbactest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// The words that worlds and questions are made of. They are few, so that
// questions often hit; and the policies have wildcards and what upstream tells
// apart on top.
var (
	namespaces      = []string{"a", "b", "kube-system", "c"}
	users           = []string{"", "jane", "paul", "eve", "system:node:n", "system:serviceaccount:a:x", "system:serviceaccount:b:y", "j\xe9"}
	groups          = []string{"dev", "ops", "", user.AllAuthenticated, serviceaccount.AllServiceAccountsGroup, "system:serviceaccounts:a"}
	serviceAccounts = []string{"x", "y", "default"}
	names           = []string{"n1", "n2", "n3", "n4"}
	verbs           = []string{"get", "list", "create", "impersonate"}
	apiGroups       = []string{"", "apps"}
	resources       = []string{"pods", "deployments", "secrets"}
	subresources    = []string{"log", "scale", "status"}
	paths           = []string{"/", "/metrics", "/healthz", "/healthz/etcd", "/logs/a"}

	ruleVerbs     = append(slices.Clone(verbs), rbacv1.VerbAll)
	ruleGroups    = append(slices.Clone(apiGroups), rbacv1.APIGroupAll)
	ruleResources = append(slices.Clone(resources), "pods/log", "deployments/scale", "*/scale", "*/status", "/log", rbacv1.ResourceAll)
	rulePaths     = append(slices.Clone(paths), "/healthz/*", "/logs*", "/**", rbacv1.NonResourceAll)
)

// aggregate is the label of cluster roles whose rules the aggregated cluster role
// has too.
const aggregate = "aggregate"

// Random returns a world of some dozen objects.
func Random(rng *rand.Rand) *World {
	w := &World{revision: 1}
	for range 3 + rng.IntN(8) {
		w.clusterRoles.put(randomClusterRole(rng), w.next())
	}
	w.clusterRoles.put(w.aggregated(), w.next())
	for range 3 + rng.IntN(10) {
		w.roles.put(randomRole(rng), w.next())
	}
	for range 2 + rng.IntN(15) {
		w.clusterRoleBindings.put(randomClusterRoleBinding(rng), w.next())
	}
	for range 5 + rng.IntN(30) {
		w.roleBindings.put(randomRoleBinding(rng), w.next())
	}
	return w
}

func (w *World) next() uint64 {
	w.revision++
	return w.revision
}

// Change is one object that was written or deleted.
type Change struct {
	// Object is the object as it is now, or as it was deleted: then its
	// resourceVersion is that of the deletion.
	Object runtime.Object
	// Deleted is whether it was deleted.
	Deleted bool
}

// Mutate creates, replaces or deletes an object, and returns what has changed in
// order: the aggregated cluster role may follow.
func (w *World) Mutate(rng *rand.Rand) []Change {
	switch rng.IntN(4) {
	case 0:
		change := mutate(rng, w, &w.clusterRoles, randomClusterRole)
		all := w.aggregated()
		w.clusterRoles.put(all, w.next())
		return []Change{change, {Object: all}}
	case 1:
		return []Change{mutate(rng, w, &w.roles, randomRole)}
	case 2:
		return []Change{mutate(rng, w, &w.clusterRoleBindings, randomClusterRoleBinding)}
	}
	return []Change{mutate(rng, w, &w.roleBindings, randomRoleBinding)}
}

func mutate[T object](rng *rand.Rand, w *World, t *table[T], random func(*rand.Rand) T) Change {
	if all := t.all(); len(all) > 0 && rng.IntN(3) == 0 {
		old := all[rng.IntN(len(all))]
		t.remove(old)
		deleted := old.DeepCopyObject()
		deleted.(T).SetResourceVersion(strconv.FormatUint(w.next(), 10))
		return Change{Object: deleted, Deleted: true}
	}
	o := random(rng)
	t.put(o, w.next())
	return Change{Object: o}
}

// Question returns a question that has to do with the world's objects.
func (w *World) Question(rng *rand.Rand) authorizer.AttributesRecord {
	question := authorizer.AttributesRecord{User: randomUser(rng), Verb: pick(rng, verbs)}
	if rng.IntN(5) == 0 {
		question.Path = pick(rng, paths)
		if rng.IntN(10) == 0 {
			question.Namespace = pick(rng, namespaces)
		}
		return question
	}
	question.ResourceRequest = true
	question.APIGroup, question.APIVersion = pick(rng, apiGroups), "v1"
	question.Resource = pick(rng, resources)
	if rng.IntN(4) > 0 {
		question.Namespace = pick(rng, namespaces)
	}
	if rng.IntN(3) > 0 {
		question.Name = pick(rng, names)
	}
	if rng.IntN(3) == 0 {
		question.Subresource = pick(rng, subresources)
	}
	if rng.IntN(8) == 0 {
		selectors(rng, &question)
	}
	return question
}

// selectors adds what RBAC does not look at.
func selectors(rng *rand.Rand, question *authorizer.AttributesRecord) {
	question.FieldSelectorRequirements = fields.Requirements{{Field: "spec.nodeName", Operator: selection.Equals, Value: pick(rng, names)}}
	if requirement, err := labels.NewRequirement("app", selection.In, []string{pick(rng, names)}); err == nil {
		question.LabelSelectorRequirements = labels.Requirements{*requirement}
	}
	if rng.IntN(4) == 0 {
		question.LabelSelectorParsingErr = fmt.Errorf("no selector")
	}
}

// Elsewhere returns the question with another name, and in another namespace if
// that may change too.
func Elsewhere(rng *rand.Rand, question authorizer.AttributesRecord, anyNamespace bool) authorizer.AttributesRecord {
	question.Name = pick(rng, append([]string{"", "other"}, names...))
	if anyNamespace {
		question.Namespace = pick(rng, append([]string{"", "other"}, namespaces...))
	}
	return question
}

func pick(rng *rand.Rand, words []string) string { return words[rng.IntN(len(words))] }

// some returns one word at least, and seldom more than three.
func some(rng *rand.Rand, words []string) []string {
	picked := []string{pick(rng, words)}
	for rng.IntN(2) == 0 {
		picked = append(picked, pick(rng, words))
	}
	return picked
}

func randomUser(rng *rand.Rand) user.Info {
	info := &user.DefaultInfo{Name: pick(rng, users)}
	if rng.IntN(4) == 0 {
		info.Name = serviceaccount.MakeUsername(pick(rng, namespaces), pick(rng, serviceAccounts))
	}
	for range rng.IntN(5) {
		info.Groups = append(info.Groups, pick(rng, groups)) // maybe one twice
	}
	return info
}

func randomRules(rng *rand.Rand) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for range rng.IntN(6) {
		rule := rbacv1.PolicyRule{Verbs: some(rng, ruleVerbs)}
		kind := rng.IntN(8)
		if kind > 0 {
			rule.APIGroups, rule.Resources = some(rng, ruleGroups), some(rng, ruleResources)
			if rng.IntN(2) == 0 {
				rule.ResourceNames = some(rng, names)
			}
		}
		if kind < 2 {
			rule.NonResourceURLs = some(rng, rulePaths)
		}
		rules = append(rules, rule)
	}
	return rules
}

func randomClusterRole(rng *rand.Rand) *rbacv1.ClusterRole {
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("cr%d", rng.IntN(10))},
		Rules:      randomRules(rng),
	}
	if rng.IntN(3) == 0 {
		role.Labels = map[string]string{aggregate: "true"}
	}
	return role
}

// aggregated returns the cluster role whose rules are those of the labelled ones,
// as the controller keeps it.
func (w *World) aggregated() *rbacv1.ClusterRole {
	all := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "aggregated"},
		AggregationRule: &rbacv1.AggregationRule{
			ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{aggregate: "true"}}},
		},
	}
	for _, role := range w.clusterRoles.byNamespace[""] {
		if role.Labels[aggregate] == "true" {
			all.Rules = append(all.Rules, role.Rules...)
		}
	}
	return all
}

func randomRole(rng *rand.Rand) *rbacv1.Role {
	return &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: pick(rng, namespaces), Name: fmt.Sprintf("r%d", rng.IntN(4))},
		Rules:      randomRules(rng),
	}
}

// randomRef names a role that may not be there, or rarely none that can be.
func randomRef(rng *rand.Rand, clusterRole bool) rbacv1.RoleRef {
	switch {
	case rng.IntN(40) == 0:
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "cr0"}
	case !clusterRole:
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: fmt.Sprintf("r%d", rng.IntN(5))}
	case rng.IntN(8) == 0:
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "aggregated"}
	}
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: fmt.Sprintf("cr%d", rng.IntN(11))}
}

func randomClusterRoleBinding(rng *rand.Rand) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("crb%d", rng.IntN(20))},
		RoleRef:    randomRef(rng, rng.IntN(20) > 0),
		Subjects:   randomSubjects(rng),
	}
}

func randomRoleBinding(rng *rand.Rand) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pick(rng, namespaces), Name: fmt.Sprintf("rb%d", rng.IntN(12))},
		RoleRef:    randomRef(rng, rng.IntN(2) == 0),
		Subjects:   randomSubjects(rng),
	}
}

// randomSubjects returns none at times, and one twice.
func randomSubjects(rng *rand.Rand) []rbacv1.Subject {
	var subjects []rbacv1.Subject
	for range rng.IntN(6) {
		switch rng.IntN(7) {
		case 0, 1:
			subjects = append(subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: pick(rng, users)})
		case 2, 3:
			subjects = append(subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: pick(rng, groups)})
		case 4:
			subjects = append(subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: pick(rng, serviceAccounts)})
		case 5:
			subjects = append(subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: pick(rng, namespaces), Name: pick(rng, serviceAccounts)})
		case 6:
			if rng.IntN(5) == 0 {
				subjects = append(subjects, rbacv1.Subject{Kind: "Robot", Name: pick(rng, users)})
			}
		}
	}
	return subjects
}
