package limits

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/trigate/trigate/deploy/pki"
	"github.com/trigate/trigate/deploy/test/framework"
)

// attribute is an attribute of a certificate's subject. Its ASN.1 type need not be
// one that crypto/x509 would choose.
type attribute struct {
	oid   asn1.ObjectIdentifier
	tag   int
	value string
}

var (
	commonName   = asn1.ObjectIdentifier{2, 5, 4, 3}
	organization = asn1.ObjectIdentifier{2, 5, 4, 10}
)

// subjectOf is a name in ASN.1.
func subjectOf(t *testing.T, attributes ...attribute) []byte {
	t.Helper()
	type pair struct {
		Type  asn1.ObjectIdentifier
		Value asn1.RawValue
	}
	var names []byte
	for _, a := range attributes {
		one := marshalASN1(t, pair{a.oid, asn1.RawValue{Tag: a.tag, Bytes: []byte(a.value)}})
		names = append(names, marshalASN1(t, asn1.RawValue{Tag: asn1.TagSet, IsCompound: true, Bytes: one})...)
	}
	return marshalASN1(t, asn1.RawValue{Tag: asn1.TagSequence, IsCompound: true, Bytes: names})
}

func marshalASN1(t *testing.T, value any) []byte {
	t.Helper()
	content, err := asn1.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// certificateUser is a caller with a certificate of this subject. Unlike client-go
// and crypto/tls it does not look at what it sends.
type certificateUser struct {
	client *http.Client
	url    string
}

func certificateOf(t *testing.T, c *framework.Cluster, subject []byte) *certificateUser {
	t.Helper()
	authority, err := cert.CertsFromFile(c.PKI.Cert(pki.ClusterCA))
	if err != nil {
		t.Fatal(err)
	}
	authorityKey, err := keyutil.PrivateKeyFromFile(c.PKI.Key(pki.ClusterCA))
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		RawSubject:   subject,
		NotBefore:    time.Now().Add(-time.Minute),
		NotAfter:     time.Now().Add(time.Hour),
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, authority[0], key.Public(), authorityKey)
	if err != nil {
		t.Fatal(err)
	}
	config := c.Anonymous(t)
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	tlsConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: tlsConfig}}
	t.Cleanup(client.CloseIdleConnections)
	return &certificateUser{client: client, url: config.Host}
}

// get returns the code and body of the answer, or the error without an answer.
func (u *certificateUser) get(path string) (int, string, error) {
	resp, err := u.client.Get(u.url + path)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(content), err
}

func TestUsersNamedByCertificates(t *testing.T) {
	const t61 = asn1.TagT61String
	for _, test := range []struct {
		name    string
		subject []attribute
		user    string // the name in messages; "" if the certificate is no good
	}{
		{"UTF8String", []attribute{{commonName, asn1.TagUTF8String, "zoë"}, {organization, asn1.TagUTF8String, "名前"}}, "zoë"},
		{"emoji", []attribute{{commonName, asn1.TagUTF8String, "😀"}}, "😀"},
		{"percent", []attribute{{commonName, asn1.TagUTF8String, "%ff"}}, "%ff"},
		{"T61String", []attribute{{commonName, t61, "zo\xeb"}, {organization, t61, "\xff\xfe"}}, "zoë"},
		{"T61String of UTF-8", []attribute{{commonName, t61, "zoë"}}, "zoÃ«"},
		{"BMPString", []attribute{{commonName, asn1.TagBMPString, "\x00z\x00o\x00\xeb"}}, "zoë"},
		{"IA5String", []attribute{{commonName, asn1.TagIA5String, "jane@example.org"}}, "jane@example.org"},
		{"control characters", []attribute{{commonName, asn1.TagUTF8String, "a\x00b\nc"}}, "a\x00b\nc"},
		{"invalid UTF8String", []attribute{{commonName, asn1.TagUTF8String, "\xff"}}, ""},
		{"invalid group", []attribute{{commonName, asn1.TagUTF8String, "jane"}, {organization, asn1.TagUTF8String, "zo\xeb"}}, ""},
		{"invalid IA5String", []attribute{{commonName, asn1.TagIA5String, "\xff"}}, ""},
		{"invalid PrintableString", []attribute{{commonName, asn1.TagPrintableString, "\xff"}}, ""},
		{"odd BMPString", []attribute{{commonName, asn1.TagBMPString, "\x00"}}, ""},
		{"surrogate in BMPString", []attribute{{commonName, asn1.TagBMPString, "\xd8\x00"}}, ""},
		{"OCTET STRING", []attribute{{commonName, asn1.TagOctetString, "jane"}}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
				user := certificateOf(t, c, subjectOf(t, test.subject...))
				if test.user == "" {
					// The connection may break before the client has read why.
					framework.Eventually(t, "the server says why", func() error {
						code, _, err := user.get("/version")
						if err == nil {
							t.Fatalf("the certificate is let in: code %d", code)
						}
						_, alert, ok := strings.Cut(err.Error(), "remote error: ")
						if !ok {
							return err
						}
						s.Say("alert", alert)
						return nil
					})
					return
				}
				code, body, err := user.get("/api/v1/nodes")
				if err != nil {
					t.Fatal(err)
				}
				s.Say("answer", fmt.Sprintf("%d %+q", code, body))
				want := fmt.Sprintf(`nodes is forbidden: User %q cannot list resource "nodes" in API group "" at the cluster scope`, test.user)
				var status struct{ Message string }
				if err := json.Unmarshal([]byte(body), &status); err != nil {
					t.Fatal(err)
				}
				if code != http.StatusForbidden || status.Message != want {
					t.Errorf("got %d %q, want 403 %q", code, status.Message, want)
				}
			})
		})
	}
}
