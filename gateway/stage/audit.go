package stage

import (
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
)

// audit sets up the audit policy and the log and webhook back ends.
func audit(config *genericapiserver.Config, opts *genericoptions.AuditOptions) error {
	return opts.ApplyTo(config)
}
