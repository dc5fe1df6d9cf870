package app

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
)

// missesShown is how many near misses are for people. The rest is in -o json.
const missesShown = 5

// printExplanation prints an answer for people.
func printExplanation(out io.Writer, q *question, x *authzv1.ExplainResponse) error {
	p := newPage(out)
	who, answer := q.attributes.GetUser().GetName(), x.GetAnswer()
	if answer.GetDecision() == authzv1.Decision_DECISION_ALLOW {
		p.printf(good, "yes: ")
		p.printf(strong, "%s may %s\n", who, q)
	} else {
		p.printf(bad, "no: ")
		p.printf(strong, "%s may not %s\n", who, q)
	}
	p.printf(plain, "\n")
	switch {
	case x.GetGrant() != nil:
		printGrant(p, x)
	case x.GetDecidedBy() != "":
		p.printf(plain, "  %s\n", x.GetDecidedBy())
	default:
		printSays(p, answer)
	}
	if answer.GetError() != "" {
		p.printf(plain, "\nErrors while deciding:\n  %s\n", answer.GetError())
	}
	if errs := x.GetErrors(); len(errs) > 0 {
		p.printf(plain, "\nRoles that are bound and cannot be read:\n")
		for _, text := range errs {
			p.printf(plain, "  %s\n", text)
		}
	}
	if answer.GetDecision() != authzv1.Decision_DECISION_ALLOW && x.GetDecidedBy() == "" {
		printMisses(p, q, x)
	}
	if x.GetPercentEncoded() || answer.GetPercentEncoded() {
		p.printf(plain, "\nNames are percent-encoded here, since one of them is not UTF-8.\n")
	}
	return p.err
}

// printGrant prints the path by which RBAC allows it.
func printGrant(p *page, x *authzv1.ExplainResponse) {
	grant := x.GetGrant()
	authorizer := "rbac"
	for _, say := range x.GetAnswer().GetAuthorizers() {
		if say.GetDecision() == authzv1.Decision_DECISION_ALLOW {
			authorizer = say.GetName()
		}
	}
	p.printf(plain, "  authorizer  %s\n", authorizer)
	p.printf(plain, "  binding     %s\n", object(grant.GetBinding()))
	p.printf(plain, "  subject     %s\n", subject(grant))
	p.printf(plain, "  role        %s\n", object(grant.GetRole()))
	p.printf(plain, "  %-10s  %s\n", ruleName(grant), rule(grant.GetRule()))
}

// printSays prints what each authorizer said of what none allowed.
func printSays(p *page, answer *authzv1.AuthorizeResponse) {
	width := 0
	for _, say := range answer.GetAuthorizers() {
		width = max(width, len(say.GetName()))
	}
	for _, say := range answer.GetAuthorizers() {
		text := map[authzv1.Decision]string{
			authzv1.Decision_DECISION_ALLOW:      "allows it",
			authzv1.Decision_DECISION_DENY:       "refuses it",
			authzv1.Decision_DECISION_NO_OPINION: "no opinion",
		}[say.GetDecision()]
		p.printf(plain, "  %-*s  %s", width, say.GetName(), cmp.Or(text, "no decision"))
		for _, more := range []string{say.GetReason(), say.GetError()} {
			if more != "" {
				p.printf(plain, ": %s", strings.ReplaceAll(more, "\n", "; "))
			}
		}
		p.printf(plain, "\n")
	}
}

// printMisses prints the rules that came nearest, and what would change the answer.
func printMisses(p *page, q *question, x *authzv1.ExplainResponse) {
	misses := x.GetNearMisses()
	if len(misses) == 0 {
		user := q.attributes.GetUser()
		p.printf(plain, "\nNo rule that is bound to this user comes near. Its groups are %s.\n", cmp.Or(strings.Join(user.GetGroups(), ", "), "none"))
		p.printf(plain, "\nHint: a binding that names the user or one of the groups, with a role that has\n  %s\n", neededRule(q.attributes))
		return
	}
	p.printf(plain, "\nNearest rules:\n")
	for i, miss := range misses {
		if i == missesShown {
			p.printf(plain, "  and %d more (-o json has up to 100)\n", len(misses)-i)
			break
		}
		grant := miss.GetGrant()
		p.printf(plain, "  %s of %s, by %s:\n", ruleName(grant), object(grant.GetRole()), object(grant.GetBinding()))
		p.printf(plain, "    %s\n", rule(grant.GetRule()))
		p.printf(bad, "    %s\n", shortfall(q.attributes, miss))
	}
	p.printf(plain, "\nHint: %s\n", hint(q.attributes, misses[0]))
}

// shortfall tells in what a rule falls short.
func shortfall(a *authzv1.Attributes, miss *authzv1.NearMiss) string {
	switch miss.GetDimension() {
	case authzv1.Dimension_DIMENSION_VERB:
		return fmt.Sprintf("lacks the verb %q", a.GetVerb())
	case authzv1.Dimension_DIMENSION_API_GROUP:
		return fmt.Sprintf("lacks the API group %q", a.GetApiGroup())
	case authzv1.Dimension_DIMENSION_RESOURCE:
		return fmt.Sprintf("lacks the resource %q", ruleResource(a))
	case authzv1.Dimension_DIMENSION_NAME:
		if a.GetName() == "" {
			return "is for single names, and the request has none"
		}
		return fmt.Sprintf("lacks the name %q", a.GetName())
	case authzv1.Dimension_DIMENSION_NAMESPACE:
		bound := "namespace " + strconv.Quote(miss.GetGrant().GetBinding().GetNamespace())
		if a.GetNamespace() == "" {
			return "is bound in " + bound + " only, and the request is not in a namespace"
		}
		return fmt.Sprintf("is bound in %s, not in %q", bound, a.GetNamespace())
	case authzv1.Dimension_DIMENSION_PATH:
		return fmt.Sprintf("lacks the path %q", a.GetPath())
	default:
		return "falls short in a way that this version does not know: " + miss.GetDimension().String()
	}
}

// hint tells what would make a rule do.
func hint(a *authzv1.Attributes, miss *authzv1.NearMiss) string {
	grant := miss.GetGrant()
	if miss.GetDimension() != authzv1.Dimension_DIMENSION_NAMESPACE {
		return fmt.Sprintf("it would be allowed if %s of %s did not lack that. Whoever else is bound to the role would be allowed it too.",
			ruleName(grant), object(grant.GetRole()))
	}
	where := "a ClusterRoleBinding"
	if a.GetNamespace() != "" {
		where = fmt.Sprintf("a RoleBinding in namespace %q", a.GetNamespace())
	}
	if grant.GetRole().GetKind() == "ClusterRole" {
		return fmt.Sprintf("it would be allowed if %s bound %s too.", where, object(grant.GetRole()))
	}
	return fmt.Sprintf("it would be allowed if %s bound a role with that rule; %s cannot be bound there.", where, object(grant.GetRole()))
}

// neededRule is a rule that allows an action and nothing else.
func neededRule(a *authzv1.Attributes) string {
	if !a.GetResourceRequest() {
		return rule(&authzv1.Rule{Verbs: []string{a.GetVerb()}, NonResourceUrls: []string{a.GetPath()}})
	}
	needed := &authzv1.Rule{Verbs: []string{a.GetVerb()}, ApiGroups: []string{a.GetApiGroup()}, Resources: []string{ruleResource(a)}}
	if a.GetName() != "" {
		needed.ResourceNames = []string{a.GetName()}
	}
	return rule(needed)
}

// ruleResource is a resource as rules have it.
func ruleResource(a *authzv1.Attributes) string {
	if a.GetSubresource() != "" {
		return a.GetResource() + "/" + a.GetSubresource()
	}
	return a.GetResource()
}

// object is an RBAC object as people call it.
func object(o *authzv1.ObjectName) string {
	if o.GetNamespace() != "" {
		return o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
	}
	return o.GetKind() + " " + o.GetName()
}

// subject is whom a binding names.
func subject(grant *authzv1.Grant) string {
	s := grant.GetSubject()
	if namespace := subjectNamespace(grant); namespace != "" {
		return s.GetKind() + " " + namespace + "/" + s.GetName()
	}
	return s.GetKind() + " " + s.GetName()
}

// subjectNamespace is the namespace of a service account, which is the binding's if
// the binding does not say.
func subjectNamespace(grant *authzv1.Grant) string {
	if grant.GetSubject().GetKind() != "ServiceAccount" {
		return ""
	}
	return cmp.Or(grant.GetSubject().GetNamespace(), grant.GetBinding().GetNamespace())
}

// ruleName is the place of a rule in its role, as Kubernetes' messages name fields.
func ruleName(grant *authzv1.Grant) string { return fmt.Sprintf("rules[%d]", grant.GetRuleIndex()) }

// rule is a rule in one line.
func rule(r *authzv1.Rule) string {
	parts := []string{"verbs: " + strings.Join(r.GetVerbs(), ", ")}
	add := func(what string, values []string) {
		if len(values) > 0 {
			parts = append(parts, what+": "+strings.Join(values, ", "))
		}
	}
	if len(r.GetResources()) > 0 {
		groups := slices.Clone(r.GetApiGroups())
		for i, group := range groups {
			// The core group has no name.
			groups[i] = cmp.Or(group, `""`)
		}
		add("API groups", groups)
	}
	add("resources", r.GetResources())
	add("names", r.GetResourceNames())
	add("URLs", r.GetNonResourceUrls())
	return strings.Join(parts, "; ")
}
