package app

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	kubeapiserveroptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// ownFlags are the gateway's flags that kube-apiserver has not.
var ownFlags = []string{
	"admission-endpoint",
	"admission-skip",
	"authn-endpoint",
	"authz-endpoint",
	"decision-cache-bytes",
	"decision-cache-entries",
	"etcd-startup-timeout",
	"gates-ca-file",
	"gates-client-cert-file",
	"gates-client-key-file",
}

func flagNames(fss cliflag.NamedFlagSets, keep func(*pflag.Flag) bool) []string {
	names := map[string]bool{}
	for _, fs := range fss.FlagSets {
		fs.VisitAll(func(f *pflag.Flag) {
			if keep(f) {
				names[f.Name] = true
			}
		})
	}
	return slices.Sorted(maps.Keys(names))
}

func isMoved(f *pflag.Flag) bool {
	_, ok := f.Value.(movedValue)
	return ok
}

// TestFlagLists wants every flag of kube-apiserver to be the gateway's or to have
// moved. A flag that is new in Kubernetes fails it until somebody decided.
func TestFlagLists(t *testing.T) {
	all := func(*pflag.Flag) bool { return true }
	upstream := flagNames(kubeapiserveroptions.NewServerRunOptions().Flags(), all)
	gateway := NewOptions().Flags()

	moved := flagNames(gateway, isMoved)
	if want := slices.Sorted(maps.Keys(movedFlags)); !slices.Equal(moved, want) {
		t.Errorf("flags that answer where they went = %v, want %v", moved, want)
	}
	got := flagNames(gateway, all)
	want := slices.Sorted(slices.Values(append(slices.Clone(upstream), ownFlags...)))
	if !slices.Equal(got, want) {
		t.Errorf("gateway's flags differ from kube-apiserver's and its own:\nmissing: %v\nunknown: %v",
			difference(want, got), difference(got, want))
	}
}

// TestMovedFlagsOfGates wants each gate's flags to have moved: those that a service
// owns must not be taken here without effect.
func TestMovedFlagsOfGates(t *testing.T) {
	for _, prefix := range []string{"oidc-", "authorization-", "authentication-token-webhook-"} {
		for _, name := range flagNames(NewOptions().Flags(), func(f *pflag.Flag) bool { return !isMoved(f) }) {
			if strings.HasPrefix(name, prefix) {
				t.Errorf("--%s is taken by the gateway, want it refused", name)
			}
		}
	}
}

// TestMovedFlagSaysWhere wants the name of the process that has the flag now.
func TestMovedFlagSaysWhere(t *testing.T) {
	tests := []struct{ arg, flag, to string }{
		{"--authorization-mode=RBAC", "--authorization-mode", toAuthz},
		{"--oidc-issuer-url=https://issuer", "--oidc-issuer-url", toAuthn},
		{"--service-account-signing-key-file=sa.key", "--service-account-signing-key-file", toAuthn},
		{"--service-account-lookup", "--service-account-lookup", toAuthn},
		{"--enable-admission-plugins=NodeRestriction", "--enable-admission-plugins", toAdmission},
		{"--enable_admission_plugins=NodeRestriction", "--enable-admission-plugins", toAdmission},
	}
	for _, test := range tests {
		t.Run(test.arg, func(t *testing.T) {
			cmd := NewCommand()
			cmd.SetGlobalNormalizationFunc(cliflag.WordSepNormalizeFunc)
			err := cmd.ParseFlags([]string{test.arg})
			if err == nil {
				t.Fatal("ParseFlags = nil, want an error")
			}
			for _, want := range []string{test.flag, test.to} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("ParseFlags = %q, want %q in it", err, want)
				}
			}
		})
	}
}

// TestGatesOptionsValidate wants each mistake named by its flag.
func TestGatesOptionsValidate(t *testing.T) {
	opts := NewGatesOptions()
	opts.AuthnEndpoint = ""
	opts.CAFile = "does-not-exist"
	var texts []string
	for _, err := range opts.Validate() {
		texts = append(texts, err.Error())
	}
	for _, flag := range []string{"--authn-endpoint", "--gates-ca-file", "--gates-client-cert-file", "--gates-client-key-file"} {
		if !slices.ContainsFunc(texts, func(text string) bool { return strings.HasPrefix(text, flag+":") }) {
			t.Errorf("Validate = %q, want a problem that starts with %s:", texts, flag)
		}
	}
}

// difference returns what is in a and not in b.
func difference(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}
