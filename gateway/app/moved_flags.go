package app

import (
	"fmt"
	"slices"

	"github.com/spf13/pflag"
)

// The services that flags of kube-apiserver moved to.
const (
	toAuthn     = "trigate-authn"
	toAuthz     = "trigate-authz"
	toAdmission = "trigate-admission"
)

// movedFlags are the flags of kube-apiserver that configure a gate, each with the
// process that has it now under the same name. TestFlagLists holds the list
// against upstream's.
var movedFlags = map[string]string{
	"authentication-token-webhook-cache-ttl":   toAuthn,
	"authentication-token-webhook-config-file": toAuthn,
	"authentication-token-webhook-version":     toAuthn,
	"enable-bootstrap-token-auth":              toAuthn,
	"oidc-ca-file":                             toAuthn,
	"oidc-client-id":                           toAuthn,
	"oidc-groups-claim":                        toAuthn,
	"oidc-groups-prefix":                       toAuthn,
	"oidc-issuer-url":                          toAuthn,
	"oidc-required-claim":                      toAuthn,
	"oidc-signing-algs":                        toAuthn,
	"oidc-username-claim":                      toAuthn,
	"oidc-username-prefix":                     toAuthn,
	"service-account-key-file":                 toAuthn,
	"service-account-lookup":                   toAuthn,
	"service-account-signing-endpoint":         toAuthn,
	"service-account-signing-key-file":         toAuthn,
	"token-auth-file":                          toAuthn,

	"authorization-config":                         toAuthz,
	"authorization-mode":                           toAuthz,
	"authorization-policy-file":                    toAuthz,
	"authorization-webhook-cache-authorized-ttl":   toAuthz,
	"authorization-webhook-cache-unauthorized-ttl": toAuthz,
	"authorization-webhook-config-file":            toAuthz,
	"authorization-webhook-version":                toAuthz,
	"admission-control":                            toAdmission,
	"admission-control-config-file":                toAdmission,
	"default-not-ready-toleration-seconds":         toAdmission,
	"default-unreachable-toleration-seconds":       toAdmission,
	"disable-admission-plugins":                    toAdmission,
	"enable-admission-plugins":                     toAdmission,
}

// movedValue is the value of a flag that moved: to set it is an error.
type movedValue struct{ to string }

var _ pflag.Value = movedValue{}

// Set refuses every value.
func (v movedValue) Set(string) error {
	return fmt.Errorf("this flag moved to %s: give it to that process", v.to)
}

// String returns nothing, so that no default is shown.
func (v movedValue) String() string { return "" }

// Type names the value in the usage text.
func (v movedValue) Type() string { return "moved" }

// replaceMovedFlags makes every moved flag in fs, and those that fs does not have,
// answer where it went. Flags that stay are left alone.
func replaceMovedFlags(all []*pflag.FlagSet, moved *pflag.FlagSet) {
	names := make([]string, 0, len(movedFlags))
	for name := range movedFlags {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		value := movedValue{to: movedFlags[name]}
		if existing := lookup(all, name); existing != nil {
			existing.Value, existing.DefValue, existing.NoOptDefVal = value, "", "true"
			existing.Usage, existing.Deprecated, existing.Hidden = "Moved to "+value.to+".", "", true
			continue
		}
		moved.Var(value, name, "Moved to "+value.to+".")
		// Without a value too the answer is where the flag went.
		moved.Lookup(name).NoOptDefVal = "true"
	}
}

func lookup(all []*pflag.FlagSet, name string) *pflag.Flag {
	for _, fs := range all {
		if f := fs.Lookup(name); f != nil {
			return f
		}
	}
	return nil
}
