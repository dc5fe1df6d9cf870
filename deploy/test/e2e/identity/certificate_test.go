package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"testing"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/trigate/trigate/deploy/pki"
	"github.com/trigate/trigate/deploy/test/framework"
)

func TestSignedCertificateIsLetIn(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
			Subject: pkix.Name{CommonName: "new", Organization: []string{"hires"}},
		}, key)
		if err != nil {
			t.Fatal(err)
		}
		request := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: cert.CertificateRequestBlockType, Bytes: der}))
		const requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
		body := func(name, signer string) string {
			return "{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest, metadata: {name: " + name + "}, " +
				"spec: {signerName: " + signer + ", usages: [client auth], request: " + request + "}}"
		}
		admin := c.Admin(t)
		admin.Send(t, http.MethodPost, requests, body("new", "kubernetes.io/kube-apiserver-client")).Want(t, http.StatusCreated)
		t.Cleanup(func() { admin.Send(t, http.MethodDelete, requests+"/new", "").Want(t, http.StatusOK) })
		// Nobody but the approver decides, and only for signers that they may approve for.
		jane := transcript.As(t, c.User(t, "jane"))
		jane.Send(t, http.MethodPut, requests+"/new/approval", "{}").Want(t, http.StatusForbidden)
		c.MustKubectl(t, "certificate", "approve", "new")

		var signed []byte
		framework.Eventually(t, "certificate", func() error {
			var answer struct{ Status struct{ Certificate []byte } }
			admin.Send(t, http.MethodGet, requests+"/new", "").Want(t, http.StatusOK).Decode(t, &answer)
			if signed = answer.Status.Certificate; len(signed) == 0 {
				return fmt.Errorf("it is not signed yet")
			}
			return nil
		})
		config := c.Anonymous(t)
		config.CertData = signed
		if config.KeyData, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
			t.Fatal(err)
		}
		answer := whoAmI(t, transcript.As(t, config)).Want(t, http.StatusCreated)
		if got := answer.String(t, "status", "userInfo", "username"); got != "new" {
			t.Errorf("username = %q, want new", got)
		}
		// A group that is above all others is not to be had that way.
		masters, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
			Subject: pkix.Name{CommonName: "new", Organization: []string{"system:masters"}},
		}, key)
		if err != nil {
			t.Fatal(err)
		}
		request = base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: cert.CertificateRequestBlockType, Bytes: masters}))
		c.Admin(t).Send(t, http.MethodPost, requests, body("masters", "kubernetes.io/kube-apiserver-client")).
			WantMessage(t, http.StatusForbidden, `certificatesigningrequests.certificates.k8s.io "masters" is forbidden: `+
				`use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed`)
	})
}

func TestCertificatesOfOtherAuthoritiesAreRefused(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		for _, authority := range []pki.Name{pki.EtcdCA, pki.FrontProxyCA} {
			for _, name := range []string{"kubernetes-admin", "front-proxy-client"} {
				who := transcript.As(t, c.CertificateUser(t, authority, name, "system:masters"))
				whoAmI(t, who).WantMessage(t, http.StatusUnauthorized, "Unauthorized")
				who.Send(t, http.MethodGet, "/api/v1/secrets", "").Want(t, http.StatusUnauthorized)
			}
		}
		// Whoever is known by another authority's certificate can bring a token.
		config := c.CertificateUser(t, pki.EtcdCA, "kubernetes-admin", "system:masters")
		namespace := transcript.Namespace(t)
		config.BearerToken = requestToken(t, transcript.Admin(t), namespace, "default", "{}")
		whoAmI(t, transcript.As(t, config)).Want(t, http.StatusCreated)
	})
}

// TestNamesOfOurProcessesMeanNothing wants no rights for who merely is called like
// one of Trigate's processes: stock kube-apiserver knows no such names.
func TestNamesOfOurProcessesMeanNothing(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		for _, name := range []string{"gateway", "authn", "authz", "admission"} {
			name = "system:trigate:" + name
			byCertificate := transcript.As(t, c.User(t, name, "system:trigate"))
			whoAmI(t, byCertificate).Want(t, http.StatusCreated)
			for _, path := range []string{
				"/api/v1/secrets", "/api/v1/serviceaccounts", "/api/v1/namespaces", "/api/v1/nodes",
				"/apis/rbac.authorization.k8s.io/v1/clusterroles", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
				"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/metrics",
			} {
				byCertificate.Send(t, http.MethodGet, path, "").Want(t, http.StatusForbidden)
				transcript.Admin(t).Send(t, http.MethodGet, path, "",
					framework.Header("Impersonate-User", name), framework.Header("Impersonate-Group", "system:trigate")).
					Want(t, http.StatusForbidden)
			}
		}
	})
}
