package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/trigate/trigate/services/internal/apitest"
	"github.com/trigate/trigate/services/internal/servetest"
)

// gatewayFlags are kube-apiserver's flags for authentication that stay in the
// gateway.
var gatewayFlags = []string{
	"anonymous-auth",
	"client-ca-file", // here too, for callers of the service itself
	"requestheader-allowed-names",
	"requestheader-client-ca-file",
	"requestheader-extra-headers-prefix",
	"requestheader-group-headers",
	"requestheader-uid-headers",
	"requestheader-username-headers",
}

// TestFlagsAreUpstreams wants each of kube-apiserver's flags for authentication
// here, with its default, or on the list of those that stay in the gateway.
func TestFlagsAreUpstreams(t *testing.T) {
	upstream := pflag.NewFlagSet("upstream", pflag.ContinueOnError)
	kubeoptions.NewBuiltInAuthenticationOptions().WithAll().AddFlags(upstream)
	var sections cliflag.NamedFlagSets
	NewOptions().AddFlags(&sections)
	ours := sections.FlagSet("authentication")
	upstream.VisitAll(func(want *pflag.Flag) {
		got := ours.Lookup(want.Name)
		switch {
		case slices.Contains(gatewayFlags, want.Name):
			if got != nil {
				t.Errorf("--%s is here, and on the list of the gateway's", want.Name)
			}
		case got == nil:
			t.Errorf("--%s is missing", want.Name)
		case got.DefValue != want.DefValue:
			t.Errorf("--%s is %q by default, want %q", want.Name, got.DefValue, want.DefValue)
		}
	})
	if ours.Lookup(flagSigningKeyFile) == nil {
		t.Errorf("--%s is missing", flagSigningKeyFile)
	}
}

func TestMaxTokenLifetime(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for name, c := range map[string]struct {
		args []string
		want time.Duration
	}{
		"not limited":           {nil, 0},
		"extended for pods":     {[]string{"--service-account-max-token-expiration=2h"}, year},
		"longer than extended":  {[]string{"--service-account-max-token-expiration=10000h"}, 10000 * time.Hour},
		"limited, not extended": {[]string{"--service-account-max-token-expiration=2h", "--service-account-extend-token-expiration=false"}, 2 * time.Hour},
	} {
		if got := parse(t, c.args...).Complete().maxTokenLifetime(); got != c.want {
			t.Errorf("maxTokenLifetime of %s = %s, want %s", name, got, c.want)
		}
	}
}

// TestBadFlags starts the service with what it cannot use. Each ends in an error of
// one line that names the flag or the file, and says what is wrong.
func TestBadFlags(t *testing.T) {
	s := &service{pki: servetest.NewPKI(t)}
	api := apitest.New(t)
	good := append(s.tlsArgs(t), s.keyArgs(t)...)
	good = append(good, "--kubeconfig="+api.Kubeconfig(t))
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
	const configuration = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"
	for name, tc := range map[string]struct {
		args []string
		// want are parts of the error.
		want []string
	}{
		"no kubeconfig":             {[]string{"--kubeconfig="}, []string{"--kubeconfig: is required"}},
		"kubeconfig not there":      {[]string{"--kubeconfig=" + none}, []string{"--kubeconfig: ", none}},
		"kubeconfig malformed":      {[]string{"--kubeconfig=" + file("k", "kind: [")}, []string{"--kubeconfig: ", "yaml"}},
		"no signing key":            {[]string{"--service-account-signing-key-file="}, []string{"--service-account-signing-key-file: is required"}},
		"signing key not there":     {[]string{"--service-account-signing-key-file=" + none}, []string{"--service-account-signing-key-file: ", none, "no such file"}},
		"signing key malformed":     {[]string{"--service-account-signing-key-file=" + file("sk", "x")}, []string{"--service-account-signing-key-file: ", filepath.Join(dir, "sk"), "valid"}},
		"signing key of others":     {s.keyArgs(t)[:1], []string{"--service-account-signing-key-file: ", "is not among the verification keys"}},
		"verification malformed":    {[]string{"--service-account-key-file=" + file("vk", "x")}, []string{"--service-account-key-file: ", filepath.Join(dir, "vk"), "valid"}},
		"verification not there":    {[]string{"--service-account-key-file=" + none}, []string{"--service-account-key-file: ", none}},
		"issuer twice":              {[]string{"--service-account-issuer=https://issuer.example.com"}, []string{"--service-account-issuer: ", "already specified"}},
		"issuer empty":              {[]string{"--service-account-issuer="}, []string{"--service-account-issuer: ", "should not be an empty string"}},
		"JWKS URI":                  {[]string{"--service-account-jwks-uri=https://x.example.com"}, []string{"--service-account-jwks-uri: ", "belongs to the gateway"}},
		"expiration too short":      {[]string{"--service-account-max-token-expiration=1m"}, []string{"--service-account-max-token-expiration: ", "between 1 hour"}},
		"token file not there":      {[]string{"--token-auth-file=" + none}, []string{"--token-auth-file: ", none}},
		"token file malformed":      {[]string{"--token-auth-file=" + file("tf", "\"")}, []string{"--token-auth-file: ", filepath.Join(dir, "tf"), "parse error"}},
		"token file, few columns":   {[]string{"--token-auth-file=" + file("tf2", "secret-token,x\n")}, []string{"--token-auth-file: ", filepath.Join(dir, "tf2"), "at least 3 columns"}},
		"webhook not there":         {[]string{"--authentication-token-webhook-config-file=" + none}, []string{"--authentication-token-webhook-config-file: ", none}},
		"webhook malformed":         {[]string{"--authentication-token-webhook-config-file=" + file("wh", "kind: [")}, []string{"--authentication-token-webhook-config-file: ", filepath.Join(dir, "wh")}},
		"OIDC without a client":     {[]string{"--oidc-issuer-url=https://x.example.com"}, []string{"--oidc-issuer-url: ", "must be specified together"}},
		"OIDC over HTTP":            {[]string{"--oidc-issuer-url=http://x.example.com", "--oidc-client-id=x"}, []string{"http://x.example.com", "https"}},
		"OIDC CA not there":         {[]string{"--oidc-issuer-url=https://x.example.com", "--oidc-client-id=x", "--oidc-ca-file=" + none}, []string{"--oidc-ca-file: ", none}},
		"OIDC CA malformed":         {[]string{"--oidc-issuer-url=https://x.example.com", "--oidc-client-id=x", "--oidc-ca-file=" + file("oca", "x")}, []string{"--oidc-ca-file: ", filepath.Join(dir, "oca")}},
		"configuration not there":   {[]string{"--authentication-config=" + none}, []string{"--authentication-config: ", none, "no such file"}},
		"configuration malformed":   {[]string{"--authentication-config=" + file("c1", "kind: [")}, []string{"--authentication-config: ", filepath.Join(dir, "c1"), "yaml"}},
		"configuration, bad field":  {[]string{"--authentication-config=" + file("c2", configuration+"jwts: []\n")}, []string{"--authentication-config: ", filepath.Join(dir, "c2"), "jwts"}},
		"configuration, bad issuer": {[]string{"--authentication-config=" + file("c3", configuration+"jwt: [{issuer: {url: 'http://x'}}]\n")}, []string{"--authentication-config: ", filepath.Join(dir, "c3"), "issuer.url"}},
		"configuration, SA issuer":  {[]string{"--authentication-config=" + file("c4", configuration+"jwt: [{issuer: {url: 'https://issuer.example.com', audiences: [a]}, claimMappings: {username: {claim: sub, prefix: ''}}}]\n")}, []string{"--authentication-config: ", filepath.Join(dir, "c4"), "issuer.url"}},
		"configuration and flags":   {[]string{"--authentication-config=" + file("c5", configuration), "--oidc-issuer-url=https://x.example.com"}, []string{"--authentication-config: ", "mutually exclusive"}},
		"egress not there":          {[]string{"--egress-selector-config-file=" + none}, []string{"--egress-selector-config-file: ", none}},
		"a bad endpoint":            {[]string{"--authz-endpoint=nowhere"}, []string{"--authz-endpoint: ", "nowhere"}},
		"a CA that is none":         {[]string{"--peer-ca-file=" + file("ca", "no CA")}, []string{filepath.Join(dir, "ca"), "no PEM certificate"}},
		"a port in use":             {[]string{"--listen-address=" + taken.Addr().String()}, []string{"--listen-address: ", taken.Addr().String(), "in use"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := runOnce(t, parse(t, override(good, tc.args)...))
			if err == nil {
				t.Fatal("the service ran, want an error")
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error = %q, want one line", err)
			}
			if strings.Contains(err.Error(), "secret-token") {
				t.Errorf("error = %q, which has a token", err)
			}
			if i := slices.IndexFunc(tc.want, func(want string) bool { return !strings.Contains(err.Error(), want) }); i >= 0 {
				t.Errorf("error = %q, want %q in it", err, tc.want[i])
			}
		})
	}
}

// override returns the flags with some of them replaced, or repeated if the flag is
// one of those that a test repeats on purpose.
func override(flags, replacements []string) []string {
	name := func(flag string) string {
		before, _, _ := strings.Cut(flag, "=")
		return before
	}
	kept := slices.DeleteFunc(slices.Clone(flags), func(flag string) bool {
		return name(flag) != "--"+flagIssuer && slices.ContainsFunc(replacements, func(r string) bool { return name(r) == name(flag) })
	})
	return append(kept, replacements...)
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
	isolate(config)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return Run(ctx, config.Complete())
}
