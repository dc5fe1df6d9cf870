package stage

import (
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"

	authzclient "github.com/trigate/trigate/services/authz/client"
)

// TestLocalDecisions wants just what is decided without authz to be decided while it
// is away, and everything else to be undecided.
func TestLocalDecisions(t *testing.T) {
	config := &genericapiserver.Config{PostStartHooks: map[string]genericapiserver.PostStartHookConfigEntry{}}
	if _, err := authorization(config, authzclient.New(downConn{}), &serviceCertificates{}, GatesConfig{}, writeObservers{}); err != nil {
		t.Fatal(err)
	}
	ann := &user.DefaultInfo{Name: "ann", Groups: []string{user.AllAuthenticated}}
	master := &user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}}
	authn := &serviceUser{user.DefaultInfo{Name: authnUser, Groups: []string{servicesGroup}}}
	lookAlike := &user.DefaultInfo{Name: authnUser, Groups: []string{servicesGroup}}
	path := func(who user.Info, verb, path string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{User: who, Verb: verb, Path: path}
	}
	resource := func(who user.Info, verb, resource string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{User: who, Verb: verb, Resource: resource, APIVersion: "v1", ResourceRequest: true}
	}
	const undecided = authorizer.DecisionNoOpinion
	for name, test := range map[string]struct {
		question authorizer.Attributes
		want     authorizer.Decision
	}{
		"anybody reads health":             {path(ann, "get", "/readyz"), authorizer.DecisionAllow},
		"anybody reads the version":        {path(ann, "get", "/version"), authorizer.DecisionAllow},
		"anybody writes health":            {path(ann, "post", "/healthz"), undecided},
		"anybody deletes the version":      {path(ann, "delete", "/version"), undecided},
		"anybody reads metrics":            {path(ann, "get", "/metrics"), undecided},
		"anybody reads a part of health":   {path(ann, "get", "/readyz/etcd"), undecided},
		"anybody lists Secrets":            {resource(ann, "list", "secrets"), undecided},
		"system:masters lists Secrets":     {resource(master, "list", "secrets"), authorizer.DecisionAllow},
		"authn watches Secrets":            {resource(authn, "watch", "secrets"), authorizer.DecisionAllow},
		"authn deletes Secrets":            {resource(authn, "delete", "secrets"), authorizer.DecisionDeny},
		"authn lists ConfigMaps":           {resource(authn, "list", "configmaps"), authorizer.DecisionDeny},
		"somebody by the name of a server": {resource(lookAlike, "watch", "secrets"), undecided},
	} {
		t.Run(name, func(t *testing.T) {
			decision, _, err := config.Authorization.Authorizer.Authorize(t.Context(), test.question)
			if decision != test.want || (err != nil) != (test.want == undecided) {
				t.Errorf("Authorize = %v, %v, want %v", decision, err, test.want)
			}
		})
	}
}
