package stage

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	requestx509 "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
	"k8s.io/utils/clock"
)

// The common names in the services' certificates.
const (
	authnUser     = "system:trigate:authn"
	authzUser     = "system:trigate:authz"
	admissionUser = "system:trigate:admission"
	// servicesGroup is the group of all of them.
	servicesGroup = "system:trigate"
)

var readVerbs = []string{"get", "list", "watch"}

// serviceRights are what each service may do at the gateway. They are decided here
// without a call, since the services' informers have to work while the gates are
// down: it is by them that the gates come up.
var serviceRights = map[string][]rbacv1.PolicyRule{
	// What tokens are bound to, and the last-used label of legacy token secrets.
	authnUser: {
		{Verbs: readVerbs, APIGroups: []string{""}, Resources: []string{"serviceaccounts", "secrets", "pods", "nodes"}},
		{Verbs: readVerbs, APIGroups: []string{"admissionregistration.k8s.io"}, Resources: []string{"validatingwebhookconfigurations", "mutatingwebhookconfigurations"}},
		{Verbs: []string{"patch"}, APIGroups: []string{""}, Resources: []string{"secrets"}},
	},
	// The objects of RBAC and of the Node authorizer's graph.
	authzUser: {
		{Verbs: readVerbs, APIGroups: []string{"rbac.authorization.k8s.io"}, Resources: []string{"roles", "rolebindings", "clusterroles", "clusterrolebindings"}},
		{Verbs: readVerbs, APIGroups: []string{""}, Resources: []string{"nodes", "pods", "persistentvolumes"}},
		{Verbs: readVerbs, APIGroups: []string{"storage.k8s.io"}, Resources: []string{"volumeattachments"}},
		{Verbs: readVerbs, APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceslices"}},
		{Verbs: readVerbs, APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"podcertificaterequests"}},
	},
	// Policies may have parameters of any type, so it reads everything; it counts
	// quota, and NamespaceAutoProvision creates namespaces.
	admissionUser: {
		{Verbs: readVerbs, APIGroups: []string{"*"}, Resources: []string{"*"}},
		{Verbs: []string{"get"}, NonResourceURLs: []string{"/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", "/version"}},
		{Verbs: []string{"update"}, APIGroups: []string{""}, Resources: []string{"resourcequotas/status"}},
		{Verbs: []string{"create"}, APIGroups: []string{""}, Resources: []string{"namespaces"}},
	},
}

// serviceUser is the identity that a service's certificate gives. The type itself
// is the proof: it cannot be reached by impersonation, by a front proxy or by a
// certificate of the clients' CA that has the same name.
type serviceUser struct{ user.DefaultInfo }

var _ user.Info = (*serviceUser)(nil)

// serviceCertificates authenticates the services by certificates of the gates' CA
// and gives them their fixed rights.
type serviceCertificates struct {
	verify *certificateMemory
}

var _ authenticator.Request = (*serviceCertificates)(nil)

func newServiceCertificates(ca dynamiccertificates.CAContentProvider) *serviceCertificates {
	convert := requestx509.UserConversionFunc(func(chain []*x509.Certificate) (*authenticator.Response, bool, error) {
		name := chain[0].Subject.CommonName
		if _, ok := serviceRights[name]; !ok {
			return nil, false, fmt.Errorf("certificate of the gates' CA for %q: only the services have access by it", name)
		}
		// Upstream's group adder copies a user into a type of its own unless this
		// group is there already.
		groups := []string{servicesGroup, user.AllAuthenticated}
		return &authenticator.Response{User: &serviceUser{user.DefaultInfo{Name: name, Groups: groups}}}, true, nil
	})
	return &serviceCertificates{verify: newCertificateMemory(ca.VerifyOptions, convert, clock.RealClock{})}
}

// AuthenticateRequest implements authenticator.Request.
func (s *serviceCertificates) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	return s.verify.AuthenticateRequest(req)
}

// authorize allows a service what it has a right to, and has no opinion on
// anybody else.
func (s *serviceCertificates) authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	service, ok := a.GetUser().(*serviceUser)
	if !ok {
		return authorizer.DecisionNoOpinion, "", nil
	}
	if rbac.RulesAllow(a, serviceRights[service.Name]...) {
		return authorizer.DecisionAllow, "Trigate: a right of the service " + service.Name, nil
	}
	return authorizer.DecisionDeny, "Trigate: not a right of the service " + service.Name, nil
}
