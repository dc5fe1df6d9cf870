package secrets_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/cert"

	"github.com/trigate/trigate/deploy/pki"
	"github.com/trigate/trigate/deploy/pki/secrets"
)

const namespace = "trigate-system"

// change has the PKI in the Secrets changed and flushed.
func change(t *testing.T, client *fake.Clientset, do func(context.Context, pki.Config) (*pki.Layout, error), config pki.Config) ([]string, error) {
	t.Helper()
	store, err := secrets.Load(t.Context(), client.CoreV1().Secrets(namespace))
	if err != nil {
		t.Fatal(err)
	}
	config.Store, config.Namespace = store, namespace
	if _, err := do(t.Context(), config); err != nil {
		return nil, err
	}
	return store.Flush(t.Context(), false)
}

func mustChange(t *testing.T, client *fake.Clientset, do func(context.Context, pki.Config) (*pki.Layout, error), config pki.Config) []string {
	t.Helper()
	names, err := change(t, client, do, config)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func rotate(name pki.Name, step pki.Rotation) func(context.Context, pki.Config) (*pki.Layout, error) {
	return func(ctx context.Context, config pki.Config) (*pki.Layout, error) {
		return pki.Rotate(ctx, config, name, step)
	}
}

func get(t *testing.T, client *fake.Clientset, name string) *corev1.Secret {
	t.Helper()
	secret, err := client.CoreV1().Secrets(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// verifyAll wants each Secret to be what a server or a CA issuer can use as it is.
func verifyAll(t *testing.T, client *fake.Clientset) {
	t.Helper()
	for authority, names := range pki.Names() {
		issuer := get(t, client, secrets.Name(authority))
		if _, err := tls.X509KeyPair(issuer.Data[corev1.TLSCertKey], issuer.Data[corev1.TLSPrivateKeyKey]); err != nil {
			t.Errorf("%s: %v", issuer.Name, err)
		}
		for _, name := range names {
			secret := get(t, client, secrets.Name(name))
			if secret.Type != corev1.SecretTypeTLS {
				t.Errorf("type of %s = %s, want %s", secret.Name, secret.Type, corev1.SecretTypeTLS)
			}
			pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
			if err != nil {
				t.Errorf("%s: %v", secret.Name, err)
				continue
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(secret.Data["ca.crt"])
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
				t.Errorf("%s: %v", secret.Name, err)
			}
			if !bytes.Equal(secret.Data["ca.crt"], issuer.Data["ca.crt"]) {
				t.Errorf("ca.crt of %s is not that of %s", secret.Name, issuer.Name)
			}
		}
	}
}

func TestSecretsAreUsable(t *testing.T) {
	client := fake.NewClientset()
	mustChange(t, client, pki.Ensure, pki.Config{})
	verifyAll(t, client)
	names := certificate(t, client, pki.EtcdServer).DNSNames
	for _, want := range []string{"trigate-etcd-2.trigate-etcd.trigate-system.svc", "trigate-etcd.trigate-system.svc", "localhost"} {
		if !slices.Contains(names, want) {
			t.Errorf("etcd's names are %q, without %s", names, want)
		}
	}
	if again := mustChange(t, client, pki.Ensure, pki.Config{}); len(again) > 0 {
		t.Errorf("a second run wrote %q", again)
	}
	key := get(t, client, "trigate-authn").Data[corev1.TLSPrivateKeyKey]
	renewed := mustChange(t, client, pki.Ensure, pki.Config{RenewAll: true})
	if len(renewed) != 11 {
		t.Errorf("renewed %d Secrets, want the 11 with certificates: %q", len(renewed), renewed)
	}
	if !bytes.Equal(key, get(t, client, "trigate-authn").Data[corev1.TLSPrivateKeyKey]) {
		t.Error("a renewal made a new key without being asked to")
	}
	mustChange(t, client, pki.Ensure, pki.Config{RenewAll: true, NewKeys: true})
	if bytes.Equal(key, get(t, client, "trigate-authn").Data[corev1.TLSPrivateKeyKey]) {
		t.Error("a renewal with new keys kept the old one")
	}
	verifyAll(t, client)
}

func certificate(t *testing.T, client *fake.Clientset, name pki.Name) *x509.Certificate {
	t.Helper()
	certs, err := cert.ParseCertsPEM(get(t, client, secrets.Name(name)).Data[corev1.TLSCertKey])
	if err != nil {
		t.Fatal(err)
	}
	return certs[0]
}

func TestRotationOfAnAuthority(t *testing.T) {
	client := fake.NewClientset()
	mustChange(t, client, pki.Ensure, pki.Config{})
	old := certificate(t, client, pki.GatesCA)
	for _, step := range []pki.Rotation{pki.AddRotation, pki.UseRotation, pki.RetireRotation} {
		mustChange(t, client, rotate(pki.GatesCA, step), pki.Config{})
		verifyAll(t, client)
		bundle, err := cert.ParseCertsPEM(get(t, client, "trigate-authz").Data["ca.crt"])
		if err != nil {
			t.Fatal(err)
		}
		if trusted, want := slices.ContainsFunc(bundle, old.Equal), step != pki.RetireRotation; trusted != want {
			t.Errorf("after %s the old authority is trusted = %v, want %v", step, trusted, want)
		}
		if signs, want := certificate(t, client, pki.GatesCA).Equal(old), step == pki.AddRotation; signs != want {
			t.Errorf("after %s the old authority signs = %v, want %v", step, signs, want)
		}
	}
}

// TestInterrupted has every write fail once, and wants another run to mend what the
// interrupted one has left.
func TestInterrupted(t *testing.T) {
	errLost := errors.New("connection lost")
	made := fake.NewClientset()
	mustChange(t, made, pki.Ensure, pki.Config{})
	list, err := made.CoreV1().Secrets(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		do   func(context.Context, pki.Config) (*pki.Layout, error)
		from *corev1.SecretList
	}{
		{"a first run", pki.Ensure, &corev1.SecretList{}},
		{"a renewal", func(ctx context.Context, config pki.Config) (*pki.Layout, error) {
			config.RenewAll, config.NewKeys = true, true
			return pki.Ensure(ctx, config)
		}, list},
		{"adding an authority", rotate(pki.GatesCA, pki.AddRotation), list},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for n := 0; ; n++ {
				client := fake.NewClientset(tt.from.DeepCopy())
				writes := 0
				client.PrependReactor("*", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
					if action.GetVerb() != "create" && action.GetVerb() != "update" {
						return false, nil, nil
					}
					writes++
					return writes == n+1, nil, errLost
				})
				_, err := change(t, client, tt.do, pki.Config{})
				if err == nil {
					if n == 0 {
						t.Fatal("nothing was written")
					}
					return
				}
				if !errors.Is(err, errLost) || !strings.Contains(err.Error(), "Secret trigate-") {
					t.Fatalf("error = %v, want one that names the Secret", err)
				}
				mustChange(t, client, tt.do, pki.Config{})
				verifyAll(t, client)
			}
		})
	}
}

func TestSecretsOfOthers(t *testing.T) {
	client := fake.NewClientset()
	mustChange(t, client, pki.Ensure, pki.Config{})
	theirs := get(t, client, "trigate-authz")
	theirs.Labels = map[string]string{"app.kubernetes.io/managed-by": "cert-manager"}
	if _, err := client.CoreV1().Secrets(namespace).Update(t.Context(), theirs, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if names := mustChange(t, client, pki.Ensure, pki.Config{}); len(names) > 0 {
		t.Errorf("wrote %q, though the Secret of others is valid", names)
	}
	client.ClearActions()
	_, err := change(t, client, pki.Ensure, pki.Config{RenewAll: true})
	if err == nil || !strings.Contains(err.Error(), "trigate-authz") || !strings.Contains(err.Error(), "trigate-pki") {
		t.Errorf("error = %v, want one that names the Secret and the label", err)
	}
	for _, action := range client.Actions() {
		if action.GetVerb() != "get" {
			t.Errorf("%s of %s before the error", action.GetVerb(), action.GetResource().Resource)
		}
	}
}
