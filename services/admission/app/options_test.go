package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	cliflag "k8s.io/component-base/cli/flag"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/trigate/trigate/services/internal/servetest"
)

// TestFlagsAreUpstreams wants all of kube-apiserver's flags for admission, with
// its defaults.
func TestFlagsAreUpstreams(t *testing.T) {
	upstream := pflag.NewFlagSet("upstream", pflag.ContinueOnError)
	kubeoptions.NewAdmissionOptions().AddFlags(upstream)
	genericoptions.NewAPIEnablementOptions().AddFlags(upstream)
	genericoptions.NewEgressSelectorOptions().AddFlags(upstream)
	upstream.Bool(flagAggregatorRouting, false, "")
	var sections cliflag.NamedFlagSets
	NewOptions().AddFlags(&sections)
	ours := pflag.NewFlagSet("ours", pflag.ContinueOnError)
	for _, name := range sections.Order {
		if name != "service" {
			ours.AddFlagSet(sections.FlagSets[name])
		}
	}
	upstream.VisitAll(func(want *pflag.Flag) {
		if got := ours.Lookup(want.Name); got == nil {
			t.Errorf("--%s is missing", want.Name)
		} else if got.DefValue != want.DefValue {
			t.Errorf("--%s is %q by default, want %q", want.Name, got.DefValue, want.DefValue)
		}
	})
	ours.VisitAll(func(got *pflag.Flag) {
		if upstream.Lookup(got.Name) == nil {
			t.Errorf("--%s is not kube-apiserver's", got.Name)
		}
	})
}

const kubeconfig = `{apiVersion: v1, kind: Config, current-context: c,
contexts: [{name: c, context: {cluster: k, user: u}}], users: [{name: u, user: {}}],
clusters: [{name: k, cluster: {server: "https://127.0.0.1:1"}}]}`

// TestBadFlags starts the service with what it cannot use. Each ends in an error
// that names the flag or the file, and says what is wrong.
func TestBadFlags(t *testing.T) {
	servetest.CheckLeaks(t)
	pki := servetest.NewPKI(t)
	taken := servetest.Listen(t)
	defer func() { _ = taken.Close() }()
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	none := filepath.Join(dir, "none")
	good := append(pki.TLSFlags(t, "admission"),
		"--kubeconfig="+file("kubeconfig", kubeconfig), "--authz-endpoint=127.0.0.1:1", "--listen-address=127.0.0.1:0")
	configuration := "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n"
	for name, tc := range map[string]struct {
		args []string
		// want are parts of the error.
		want []string
	}{
		"no kubeconfig":            {[]string{"--kubeconfig="}, []string{"--kubeconfig: is required"}},
		"kubeconfig not there":     {[]string{"--kubeconfig=" + none}, []string{"--kubeconfig: ", none, "no such file"}},
		"kubeconfig malformed":     {[]string{"--kubeconfig=" + file("k1", "kind: [")}, []string{"--kubeconfig: ", "k1", "yaml"}},
		"no authz":                 {[]string{"--authz-endpoint="}, []string{"--authz-endpoint: is required"}},
		"authz without a port":     {[]string{"--authz-endpoint=host"}, []string{"--authz-endpoint: ", "missing port"}},
		"authn without a port":     {[]string{"--authn-endpoint=host"}, []string{"--authn-endpoint: ", "missing port"}},
		"unknown plugin":           {[]string{"--enable-admission-plugins=Nope"}, []string{`--enable-admission-plugins: plugin "Nope" is unknown`}},
		"unknown disabled plugin":  {[]string{"--disable-admission-plugins=Nope"}, []string{`--disable-admission-plugins: plugin "Nope" is unknown`}},
		"on and off":               {[]string{"--enable-admission-plugins=Priority", "--disable-admission-plugins=Priority"}, []string{"Priority", "enable-admission-plugins and disable-admission-plugins"}},
		"configuration not there":  {[]string{"--admission-control-config-file=" + none}, []string{"--admission-control-config-file: ", none, "no such file"}},
		"configuration malformed":  {[]string{"--admission-control-config-file=" + file("c1", "kind: [")}, []string{"--admission-control-config-file: ", "c1"}},
		"a plugin's configuration": {[]string{"--admission-control-config-file=" + file("c2", configuration+"- {name: PodSecurity, configuration: {apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, defaults: {enforce: nope}}}\n")}, []string{"--admission-control-config-file: ", "c2", "PodSecurity", "enforce: must be one of"}},
		"a plugin's file":          {[]string{"--admission-control-config-file=" + file("c3", configuration+"- {name: EventRateLimit, path: "+none+"}\n"), "--enable-admission-plugins=EventRateLimit"}, []string{"--admission-control-config-file: ", none}},
		"unknown API":              {[]string{"--runtime-config=nope/v1=true"}, []string{"--runtime-config: ", "nope"}},
		"odd value of an API":      {[]string{"--runtime-config=apps/v1=perhaps"}, []string{"--runtime-config: ", "perhaps"}},
		"egress not there":         {[]string{"--egress-selector-config-file=" + none}, []string{"--egress-selector-config-file: ", none, "does not exist"}},
		"egress malformed":         {[]string{"--egress-selector-config-file=" + file("e1", "kind: [")}, []string{"--egress-selector-config-file: "}},
		"port in use":              {[]string{"--listen-address=" + taken.Addr().String()}, []string{"--listen-address: ", "address already in use"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := runOnce(t, parse(t, slices.Concat(good, tc.args)...))
			servetest.WantFlagError(t, err, tc.want...)
			if !strings.HasPrefix(err.Error(), "--") {
				t.Errorf("error = %q, want it to start with a flag", err)
			}
		})
	}
}

// runOnce does what the command does. Should the service start, it is stopped.
func runOnce(t *testing.T, o *Options) error {
	t.Helper()
	completed := o.Complete()
	if err := errors.Join(completed.Validate()...); err != nil {
		return err
	}
	config, err := NewConfig(completed)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return Run(ctx, config.Complete())
}
