package app

import (
	"fmt"
	"strings"

	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// Validate returns all that is wrong, each message starting with a flag.
func (o CompletedOptions) Validate() []error {
	errs := o.serve.Validate()
	required := func(flag, value, why string) {
		if value == "" {
			errs = append(errs, fmt.Errorf("--%s: is required: %s", flag, why))
		}
	}
	required(flagKubeconfig, o.serve.Kubeconfig, "the plugins decide from what is in the gateway's API")
	required(flagAuthz, o.serve.Endpoints[peerAuthz], "plugins and policies ask what users may do")
	for _, err := range o.Admission.Validate() {
		// Upstream's messages begin with the flag's name, but for the dashes.
		errs = append(errs, fmt.Errorf("--%s", strings.Replace(err.Error(), " ", ": ", 1)))
	}
	for _, err := range o.APIs.Validate(legacyscheme.Scheme) {
		errs = append(errs, fmt.Errorf("--%s: %w", flagRuntimeConfig, err))
	}
	for _, err := range o.Egress.Validate() {
		errs = append(errs, fmt.Errorf("--%s: %w", flagEgress, err))
	}
	return errs
}
