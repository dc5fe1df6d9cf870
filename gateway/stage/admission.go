package stage

import (
	genericapiserver "k8s.io/apiserver/pkg/server"

	admissionclient "github.com/trigate/trigate/services/admission/client"
)

// admissionHook has the name of upstream's hook for the plugins' initializers, which
// are in the service, so that /readyz lists the same checks.
const admissionHook = "start-apiserver-admission-initializer"

// admission sets up the one admission chain of all three servers: the client of
// the admission gate, where the plugins and their initializers are.
func admission(config *genericapiserver.Config, remote *admissionclient.Client, reviews *tokenReviews) error {
	config.AdmissionControl = &noteReviews{next: remote, reviews: reviews}
	return config.AddPostStartHook(admissionHook, func(genericapiserver.PostStartHookContext) error { return nil })
}
