package rotation

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trigate/trigate/deploy/test/framework"
	pkiapp "github.com/trigate/trigate/deploy/trigate-pki/app"
)

// TestSecretsOfAHost keeps a PKI in the Secrets of a cluster: made by its admin, in a
// namespace that does not exist yet, and renewed by someone who may do nothing but that.
func TestSecretsOfAHost(t *testing.T) {
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		const hosted, renewer = "rotation-hosted", "renewer"
		t.Cleanup(func() {
			if err := c.Client(t).CoreV1().Namespaces().Delete(context.Background(), hosted, metav1.DeleteOptions{}); err != nil {
				t.Errorf("cleaning up: %v", err)
			}
		})
		run := func(want int, kubeconfig string, args ...string) string {
			t.Helper()
			var out bytes.Buffer
			args = append(args, "--kubeconfig="+kubeconfig, "--namespace="+hosted)
			if got := pkiapp.Main(args, &out, &out); got != want {
				t.Fatalf("trigate-pki %q = %d, want %d: %s", args, got, want, out.String())
			}
			return out.String()
		}
		if out := run(0, c.Kubeconfig, "init", "--dry-run"); strings.Count(out, "would write Secret "+hosted+"/") != 17 {
			t.Errorf("a dry run says:\n%s", out)
		}
		output := filepath.Join(t.TempDir(), "trigate.kubeconfig")
		run(0, c.Kubeconfig, "init", "--server=https://192.0.2.10:6443", "--output="+output)
		config, err := clientcmd.BuildConfigFromFlags("", output)
		if err != nil || config.Host != "https://192.0.2.10:6443" {
			t.Errorf("the kubeconfig's server is %v, %v", config, err)
		}
		if out := run(0, c.Kubeconfig, "init"); out != "nothing had to be written\n" {
			t.Errorf("init again says:\n%s", out)
		}

		c.Grant(t, framework.Grant{Name: renewer, User: renewer, Namespace: hosted, Rules: rules(framework.May("get,create,update", "", "secrets"))})
		user := c.User(t, renewer)
		limited := filepath.Join(t.TempDir(), "renewer.kubeconfig")
		writeKubeconfig(t, c, limited, user.CertData, user.KeyData)
		before := secret(t, c, hosted, "trigate-authz")
		if out := run(0, limited, "renew"); out != "nothing had to be written\n" {
			t.Errorf("renew says:\n%s", out)
		}
		run(0, limited, "renew", "--all")
		after := secret(t, c, hosted, "trigate-authz")
		if bytes.Equal(before.Data[corev1.TLSCertKey], after.Data[corev1.TLSCertKey]) || !bytes.Equal(before.Data[corev1.TLSPrivateKeyKey], after.Data[corev1.TLSPrivateKeyKey]) {
			t.Error("want another certificate for the same key")
		}
		run(0, limited, "check")
		if err := c.Client(t).CoreV1().Secrets(hosted).Delete(t.Context(), "trigate-authz", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if out := run(2, limited, "check"); !strings.Contains(out, "it is missing") {
			t.Errorf("check says:\n%s", out)
		}
		run(0, limited, "renew")
		run(0, limited, "check")
	})
}

func secret(t *testing.T, c *framework.Cluster, namespace, name string) *corev1.Secret {
	t.Helper()
	got, err := c.Client(t).CoreV1().Secrets(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// writeKubeconfig is the admin's kubeconfig with another user's certificate.
func writeKubeconfig(t *testing.T, c *framework.Cluster, path string, certPEM, keyPEM []byte) {
	t.Helper()
	config, err := clientcmd.LoadFromFile(c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		user.ClientCertificateData, user.ClientKeyData = certPEM, keyPEM
	}
	content, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}
