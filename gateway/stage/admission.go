package stage

import (
	"context"

	genericadmission "k8s.io/apiserver/pkg/admission"
	genericapiserver "k8s.io/apiserver/pkg/server"

	admissionclient "github.com/trigate/trigate/services/admission/client"
	authzclient "github.com/trigate/trigate/services/authz/client"
)

// admissionHook has the name of upstream's hook for the plugins' initializers, which
// are in the service, so that /readyz lists the same checks.
const admissionHook = "start-apiserver-admission-initializer"

// admission sets up the one admission chain of all three servers: the client of
// the admission gate, where the plugins and their initializers are. What they ask of
// authz is answered by a policy that has seen all changes which are known here.
func admission(config *genericapiserver.Config, remote *admissionclient.Client, reviews *tokenReviews, known func() authzclient.Revision) error {
	config.AdmissionControl = &noteReviews{next: &freshAdmission{next: remote, known: known}, reviews: reviews}
	return config.AddPostStartHook(admissionHook, func(genericapiserver.PostStartHookContext) error { return nil })
}

// freshAdmission tells the admission gate which changes of the policy are known.
type freshAdmission struct {
	next  mutatingAndValidating
	known func() authzclient.Revision
}

var _ mutatingAndValidating = (*freshAdmission)(nil)

// Handles implements admission.Interface.
func (f *freshAdmission) Handles(operation genericadmission.Operation) bool {
	return f.next.Handles(operation)
}

// Admit implements admission.MutationInterface.
func (f *freshAdmission) Admit(ctx context.Context, a genericadmission.Attributes, o genericadmission.ObjectInterfaces) error {
	return f.next.Admit(admissionclient.WithPolicy(ctx, f.known()), a, o)
}

// Validate implements admission.ValidationInterface.
func (f *freshAdmission) Validate(ctx context.Context, a genericadmission.Attributes, o genericadmission.ObjectInterfaces) error {
	return f.next.Validate(admissionclient.WithPolicy(ctx, f.known()), a, o)
}
