package mtls_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/trigate/trigate/services/internal/mtls"
	"github.com/trigate/trigate/services/internal/servetest"
)

func TestMain(m *testing.M) { servetest.Main(m) }

func TestKeyPairFollowsItsFiles(t *testing.T) {
	ca := servetest.NewCA(t, "ca")
	first := ca.Issue(t, servetest.Subject{CommonName: "first"})
	second := ca.Issue(t, servetest.Subject{CommonName: "second"})
	pair, err := mtls.NewKeyPair(first.CertFile, first.KeyFile)
	if err != nil {
		t.Fatalf("NewKeyPair() = %v, want nil", err)
	}
	expect := func(want string) {
		t.Helper()
		if got := pair.Certificate().Leaf.Subject.CommonName; got != want {
			t.Errorf("Certificate() is of %q, want %q", got, want)
		}
	}
	expect("first")

	// Between the two writes of a rotation the key is not the certificate's.
	servetest.WriteFile(t, first.CertFile, second.CertPEM)
	expect("first")
	if err := pair.Check(); err == nil || !strings.Contains(err.Error(), first.CertFile) {
		t.Errorf("Check() = %v, want an error with %s", err, first.CertFile)
	}
	servetest.WriteFile(t, first.KeyFile, second.KeyPEM)
	expect("second")
	if err := pair.Check(); err != nil {
		t.Errorf("Check() = %v, want nil", err)
	}
	servetest.WriteFile(t, first.CertFile, []byte("nonsense"))
	expect("second")
	servetest.WriteFile(t, first.CertFile, first.CertPEM)
	servetest.WriteFile(t, first.KeyFile, first.KeyPEM)
	expect("first")
}

func TestBundleFollowsItsFile(t *testing.T) {
	first, second := servetest.NewCA(t, "first"), servetest.NewCA(t, "second")
	bundle, err := mtls.NewBundle(first.File)
	if err != nil {
		t.Fatalf("NewBundle() = %v, want nil", err)
	}
	expect := func(want ...string) {
		t.Helper()
		var got []string
		for _, cert := range bundle.Certificates() {
			got = append(got, cert.Subject.CommonName)
		}
		if strings.Join(got, ",") != strings.Join(want, ",") {
			t.Errorf("Certificates() = %v, want %v", got, want)
		}
	}
	expect("first")
	servetest.WriteFile(t, first.File, bytes.Join([][]byte{first.PEM, second.PEM}, nil))
	expect("first", "second")
	servetest.WriteFile(t, first.File, nil)
	expect("first", "second")
	servetest.WriteFile(t, first.File, second.PEM)
	expect("second")
}

func TestUnusableFilesAreNamed(t *testing.T) {
	ca := servetest.NewCA(t, "ca")
	cert := ca.Issue(t, servetest.Subject{CommonName: "a"})
	other := ca.Issue(t, servetest.Subject{CommonName: "b"})
	bad := t.TempDir() + "/bad.pem"
	servetest.WriteFile(t, bad, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	missing := t.TempDir() + "/missing.pem"
	for name, tc := range map[string]struct {
		open func() error
		want string
	}{
		"no bundle":            {func() error { _, err := mtls.NewBundle(missing); return err }, missing},
		"bundle of keys":       {func() error { _, err := mtls.NewBundle(cert.KeyFile); return err }, cert.KeyFile},
		"bundle of nonsense":   {func() error { _, err := mtls.NewBundle(bad); return err }, bad},
		"no certificate":       {func() error { _, err := mtls.NewKeyPair(missing, cert.KeyFile); return err }, missing},
		"no key":               {func() error { _, err := mtls.NewKeyPair(cert.CertFile, missing); return err }, missing},
		"nonsense certificate": {func() error { _, err := mtls.NewKeyPair(bad, cert.KeyFile); return err }, bad},
		"another's key":        {func() error { _, err := mtls.NewKeyPair(cert.CertFile, other.KeyFile); return err }, other.KeyFile},
	} {
		t.Run(name, func(t *testing.T) {
			if err := tc.open(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v, want one with %s", err, tc.want)
			}
		})
	}
}

func TestCredentialsNeedTheirParts(t *testing.T) {
	ca := servetest.NewCA(t, "ca")
	bundle, err := mtls.NewBundle(ca.File)
	if err != nil {
		t.Fatalf("NewBundle() = %v, want nil", err)
	}
	if _, err := mtls.ClientCredentials(mtls.ClientConfig{ServerCAs: bundle}); err == nil {
		t.Error("ClientCredentials() without a server name = nil, want an error")
	}
	if _, err := mtls.ClientCredentials(mtls.ClientConfig{ServerName: "x"}); err == nil {
		t.Error("ClientCredentials() without CAs = nil, want an error")
	}
	if _, err := mtls.ServerCredentials(mtls.ServerConfig{PeerCAs: bundle}); err == nil {
		t.Error("ServerCredentials() without a certificate = nil, want an error")
	}
}
