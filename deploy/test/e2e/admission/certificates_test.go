package admission

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"testing"

	"github.com/trigate/trigate/deploy/test/framework"
)

const signingRequests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"

// signingRequest is a CertificateSigningRequest for a client certificate.
func signingRequest(t *testing.T, name, signer, organization string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "somebody", Organization: []string{organization}},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	return fmt.Sprintf("{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest, metadata: {name: %s}, spec: {signerName: %s, usages: [client auth], request: %s}}",
		name, signer, base64.StdEncoding.EncodeToString(block))
}

func TestNobodyBecomesAMasterByASigningRequest(t *testing.T) {
	t.Parallel()
	masters := signingRequest(t, "trigate-masters", "kubernetes.io/kube-apiserver-client", "system:masters")
	others := signingRequest(t, "trigate-others", "kubernetes.io/kube-apiserver-client", "others")
	foreign := signingRequest(t, "trigate-foreign", "example.com/mine", "system:masters")
	framework.Compare(t, func(t *testing.T, _ *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		const dry = signingRequests + "?dryRun=All"
		admin.Send(t, "POST", dry, masters).WantMessage(t, 403,
			`certificatesigningrequests.certificates.k8s.io "trigate-masters" is forbidden: use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed`)
		admin.Send(t, "POST", dry, others).Want(t, 201)
		admin.Send(t, "POST", dry, foreign).Want(t, 201)
	})
}

func TestApprovingAndSigningNeedTheSigner(t *testing.T) {
	t.Parallel()
	request := signingRequest(t, "trigate-approval", "example.com/mine", "others")
	signed := selfSigned(t)
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		created := s.Admin(t).Send(t, "POST", signingRequests, request).Want(t, 201)
		t.Cleanup(func() { c.Admin(t).Send(t, "DELETE", signingRequests+"/trigate-approval", "").Want(t, 200) })
		if got := created.String(t, "spec", "username"); got != "kubernetes-admin" {
			t.Errorf("got user name %q, want kubernetes-admin", got)
		}
		const group = "certificates.k8s.io"
		c.Grant(t, framework.Grant{
			Name: "approver", User: "approver",
			Rules: rules(framework.May("patch", group, "certificatesigningrequests/approval,certificatesigningrequests/status")),
		})
		approver := s.As(t, c.User(t, "approver"))
		const approval = `{"status":{"conditions":[{"type":"Approved","status":"True","reason":"r","message":"m"}]}}`
		status := `{"status":{"certificate":"` + signed + `"}}`
		send := func(subresource, body string) *framework.Answer {
			return approver.Send(t, "PATCH", signingRequests+"/trigate-approval/"+subresource, body, framework.MergePatch)
		}
		send("approval", approval).WantMessage(t, 403,
			`certificatesigningrequests.certificates.k8s.io "trigate-approval" is forbidden: user not permitted to approve requests with signerName "example.com/mine"`)
		send("status", status).WantMessage(t, 403,
			`certificatesigningrequests.certificates.k8s.io "trigate-approval" is forbidden: user not permitted to sign requests with signerName "example.com/mine"`)
		c.Grant(t, framework.Grant{
			Name: "approver-of-mine", User: "approver",
			Rules: rules(framework.May("approve,sign", group, "signers", "example.com/*")),
		})
		send("approval", approval).Want(t, 200)
		send("status", status).Want(t, 200)
	})
}

func TestTrustBundlesOfASignerNeedTheSigner(t *testing.T) {
	t.Parallel()
	authority := authorityCertificate(t)
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		const bundles = "/apis/certificates.k8s.io/v1/clustertrustbundles"
		c.Grant(t, framework.Grant{Name: "attester", User: "attester", Rules: rules(framework.May("create", "certificates.k8s.io", "clustertrustbundles"))})
		attester := s.As(t, c.User(t, "attester"))
		bundle := func(name, signer string) string {
			content, err := json.Marshal(map[string]any{
				"apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle", "metadata": map[string]any{"name": name},
				"spec": map[string]any{"signerName": signer, "trustBundle": authority},
			})
			if err != nil {
				t.Fatal(err)
			}
			return string(content)
		}
		attester.Send(t, "POST", bundles+"?dryRun=All", bundle("example.com:mine:one", "example.com/mine")).WantMessage(t, 403,
			`clustertrustbundles.certificates.k8s.io "example.com:mine:one" is forbidden: user not permitted to attest for signerName "example.com/mine"`)
		attester.Send(t, "POST", bundles+"?dryRun=All", bundle("nobodys", "")).Want(t, 201)
		c.Grant(t, framework.Grant{Name: "attester-of-mine", User: "attester", Rules: rules(framework.May("attest", "certificates.k8s.io", "signers", "example.com/mine"))})
		attester.Send(t, "POST", bundles+"?dryRun=All", bundle("example.com:mine:one", "example.com/mine")).Want(t, 201)
		attester.Send(t, "POST", bundles+"?dryRun=All", bundle("example.com:other:one", "example.com/other")).Want(t, 403)
	})
}

// authorityCertificate is some authority's certificate, in PEM.
func authorityCertificate(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	certificate := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, certificate, certificate, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// selfSigned is some certificate, for status.certificate.
func selfSigned(t *testing.T) string {
	t.Helper()
	return base64.StdEncoding.EncodeToString([]byte(authorityCertificate(t)))
}
