package explain

import (
	"cmp"
	"context"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	"github.com/trigate/trigate/services/authz/internal/convert"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// Bounds of a page of WhoCan, in grants.
const (
	defaultPageSize = 500
	maxPageSize     = 1000
)

// Question asks for a page of those who may do something.
type Question struct {
	// Action is the action. Its user is left out.
	Action authorizer.Attributes
	// PageSize is how many grants the page has at most: 500 if zero, 1,000 at most.
	PageSize int
	// PageToken is the NextPageToken of the page before. Empty for the first.
	PageToken string
}

// WhoCan lists the subjects that RBAC allows an action, by binding: each subject
// that stands for somebody, once for each binding. The errors on a page are about
// the bindings that it has come past. An error of WhoCan is an InvalidArgument
// about page_size or page_token, or that of ctx.
//
// The pages follow the names of the bindings: while somebody turns them, bindings
// may come and go, and no other one is left out or there twice for it.
func (e *Explainer) WhoCan(ctx context.Context, q Question) (*convert.Subjects, error) {
	size, err := pageSize(q.PageSize)
	if err != nil {
		return nil, err
	}
	after, err := readPageToken(q.PageToken, q.Action)
	if err != nil {
		return nil, err
	}
	bindings, errs := e.bindings(ctx, q.Action.GetNamespace())
	slices.SortFunc(bindings, byName)
	start, _ := slices.BinarySearchFunc(bindings, after.binding, func(b binding, name convert.ObjectName) int {
		return compareNames(b.name(), name)
	})
	p := page{size: size, after: after}
	p.Errors, p.NotListedBy = errs, notListedBy(e.cfg.Authorizers())
	for _, b := range bindings[start:] {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if grants, err := e.grantsOf(ctx, b, q.Action); err != nil {
			p.Errors = append(p.Errors, err.Error())
		} else if !p.add(grants) {
			p.NextPageToken = p.last.token(q.Action)
			break
		}
	}
	p.Errors = unique(p.Errors)
	return &p.Subjects, nil
}

// grantsOf returns the paths from each subject of a binding to the first rule that
// allows an action: none, if no rule does.
func (e *Explainer) grantsOf(ctx context.Context, b binding, action authorizer.Attributes) ([]placedGrant, error) {
	rules, err := e.resolver(b).GetRoleReferenceRules(ctx, b.roleRef(), b.namespace())
	if err != nil {
		return nil, err
	}
	index := slices.IndexFunc(rules, func(rule rbacv1.PolicyRule) bool { return rbac.RuleAllows(action, &rule) })
	if index < 0 {
		return nil, nil
	}
	var grants []placedGrant
	seen := map[rbacv1.Subject]bool{}
	for i, subject := range b.subjects() {
		if !seen[subject] && b.standsForSomebody(ctx, subject) {
			grants = append(grants, placedGrant{Grant: *grantTo(b, subject, index, &rules[index]), subject: i})
		}
		seen[subject] = true
	}
	return grants, nil
}

// placedGrant is a grant to one of a binding's subjects, by its place.
type placedGrant struct {
	convert.Grant
	subject int
}

// page is a page of WhoCan while it is filled.
type page struct {
	convert.Subjects
	size        int
	after, last place
}

// add adds a binding's grants, and reports whether they have room on the page.
func (p *page) add(grants []placedGrant) bool {
	for _, g := range grants {
		at := place{binding: g.Binding, subject: g.subject}
		if at.binding == p.after.binding && at.subject <= p.after.subject {
			continue
		}
		if len(p.Grants) == p.size {
			return false
		}
		p.Grants = append(p.Grants, g.Grant)
		p.last = at
	}
	return true
}

func pageSize(asked int) (int, error) {
	switch {
	case asked < 0:
		return 0, rpcerr.InvalidArgument("page_size", "is %d, which is less than nothing", asked)
	case asked > maxPageSize:
		return 0, rpcerr.InvalidArgument("page_size", "is %d, at most %d are given", asked, maxPageSize)
	}
	return cmp.Or(asked, defaultPageSize), nil
}
