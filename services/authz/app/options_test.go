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
	cliflag "k8s.io/component-base/cli/flag"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/trigate/trigate/services/internal/servetest"
)

// TestFlagsAreUpstreams wants all of kube-apiserver's flags for authorizers, with
// its defaults, and no promise of its default to allow everything.
func TestFlagsAreUpstreams(t *testing.T) {
	upstream := pflag.NewFlagSet("upstream", pflag.ContinueOnError)
	kubeoptions.NewBuiltInAuthorizationOptions().AddFlags(upstream)
	var sections cliflag.NamedFlagSets
	NewOptions().AddFlags(&sections)
	ours := sections.FlagSet("authorization")
	upstream.VisitAll(func(want *pflag.Flag) {
		got := ours.Lookup(want.Name)
		if got == nil {
			t.Errorf("--%s is missing", want.Name)
			return
		}
		if got.DefValue != want.DefValue {
			t.Errorf("--%s is %q by default, want %q", want.Name, got.DefValue, want.DefValue)
		}
	})
	if usage := ours.Lookup(flagMode).Usage; strings.Contains(usage, "efaults to AlwaysAllow") {
		t.Errorf("usage of --%s = %q, want no such default", flagMode, usage)
	}
}

// TestBadFlags starts the service with what it cannot use. Each ends in an error
// of one line that names the flag or the file, and says what is wrong.
func TestBadFlags(t *testing.T) {
	s := &service{pki: servetest.NewPKI(t)}
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
	const configuration = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n"
	badWebhook := file("webhook.yaml", configuration+"- {type: Webhook, name: hook, webhook: {timeout: 10s, subjectAccessReviewVersion: v1, matchConditionSubjectAccessReviewVersion: v1, "+
		"failurePolicy: Deny, connectionInfo: {type: KubeConfigFile, kubeConfigFile: "+file("hook", "kind: [")+"}}}\n")
	for name, tc := range map[string]struct {
		args []string
		// want are parts of the error.
		want []string
	}{
		"nothing said":             {want: []string{"--authorization-mode: is required if --authorization-config is not given"}},
		"unknown mode":             {args: []string{"--authorization-mode=Nope"}, want: []string{"--authorization-mode: ", `"Nope" is not a valid mode`}},
		"a mode twice":             {args: []string{"--authorization-mode=AlwaysDeny,AlwaysDeny"}, want: []string{"--authorization-mode: ", "more than once"}},
		"ABAC without a file":      {args: []string{"--authorization-mode=ABAC"}, want: []string{"--authorization-mode: ", "policy file not passed"}},
		"ABAC's file not there":    {args: []string{"--authorization-mode=ABAC", "--authorization-policy-file=" + none}, want: []string{"--authorization-policy-file: ", none, "no such file"}},
		"ABAC's file malformed":    {args: []string{"--authorization-mode=ABAC", "--authorization-policy-file=" + file("abac", "{")}, want: []string{"--authorization-policy-file: ", "abac, line 1"}},
		"webhook without a file":   {args: []string{"--authorization-mode=Webhook"}, want: []string{"--authorization-mode: ", "config file not passed"}},
		"webhook's file not there": {args: []string{"--authorization-mode=Webhook", "--authorization-webhook-config-file=" + none}, want: []string{"--authorization-webhook-config-file: ", none, "no such file"}},
		"configuration not there":  {args: []string{"--authorization-config=" + none}, want: []string{"--authorization-config: ", none, "no such file"}},
		"configuration malformed":  {args: []string{"--authorization-config=" + file("c1", "kind: [")}, want: []string{"--authorization-config: ", "c1", "yaml"}},
		"configuration of an unknown type": {
			args: []string{"--authorization-config=" + file("c2", configuration+"- {type: Nope, name: nope}\n")},
			want: []string{"--authorization-config: ", "c2", `authorizers[0].type`, "Nope"},
		},
		"configuration with a bad webhook": {args: []string{"--authorization-config=" + badWebhook}, want: []string{"--authorization-config: ", badWebhook, "hook"}},
		"configuration and a mode":         {args: []string{"--authorization-config=" + none, "--authorization-mode=RBAC"}, want: []string{"--authorization-config can not be specified when --authorization-mode"}},
		"RBAC without a kubeconfig":        {args: []string{"--authorization-mode=RBAC"}, want: []string{"--kubeconfig: is required", "RBAC"}},
		"kubeconfig not there":             {args: []string{"--authorization-mode=RBAC", "--kubeconfig=" + none}, want: []string{"--kubeconfig: ", none}},
		"kubeconfig malformed":             {args: []string{"--authorization-mode=RBAC", "--kubeconfig=" + file("k", "kind: [")}, want: []string{"--kubeconfig: ", "yaml"}},
		"a bad endpoint":                   {args: []string{"--authorization-mode=AlwaysDeny", "--authn-endpoint=nowhere"}, want: []string{"--authn-endpoint: ", "nowhere"}},
		"a CA that is none":                {args: []string{"--authorization-mode=AlwaysDeny", "--peer-ca-file=" + file("ca", "no CA")}, want: []string{filepath.Join(dir, "ca"), "no PEM certificate"}},
		"a port in use":                    {args: []string{"--authorization-mode=AlwaysDeny", "--listen-address=" + taken.Addr().String()}, want: []string{"--listen-address: ", taken.Addr().String(), "in use"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := runOnce(t, parse(t, append(s.tlsArgs(t), tc.args...)...))
			if err == nil {
				t.Fatal("the service ran, want an error")
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error = %q, want one line", err)
			}
			if i := slices.IndexFunc(tc.want, func(want string) bool { return !strings.Contains(err.Error(), want) }); i >= 0 {
				t.Errorf("error = %q, want %q in it", err, tc.want[i])
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
