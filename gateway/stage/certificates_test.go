package stage

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	requestx509 "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

// testCA signs client certificates.
type testCA struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newTestCA(tb testing.TB, notAfter time.Time) *testCA {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: notAfter,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	return &testCA{certificate: sign(tb, template, template, key, key), key: key}
}

func (ca *testCA) client(tb testing.TB, name string, notAfter time.Time) *x509.Certificate {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return sign(tb, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name, Organization: []string{"devs"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: notAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca.certificate, key, ca.key)
}

func (ca *testCA) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.certificate)
	return pool
}

func sign(tb testing.TB, template, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) *x509.Certificate {
	tb.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		tb.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	return certificate
}

// bundle is a CA bundle that can be replaced, as its file can.
type bundle struct{ pool *x509.CertPool }

func (b *bundle) options() (x509.VerifyOptions, bool) {
	return x509.VerifyOptions{Roots: b.pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, b.pool != nil
}

// connection is a request of a client with these certificates. Requests of one
// connection share its state, in HTTP/1 as in HTTP/2.
func connection(certificates ...*x509.Certificate) *http.Request {
	return &http.Request{TLS: &tls.ConnectionState{PeerCertificates: certificates}}
}

// counting counts the conversions, one for each verification that succeeded.
func counting(n *int) requestx509.UserConversion {
	return requestx509.UserConversionFunc(func(chain []*x509.Certificate) (*authenticator.Response, bool, error) {
		*n++
		return requestx509.CommonNameUserConversion(chain)
	})
}

func TestCertificateMemory(t *testing.T) {
	hour := time.Now().Add(time.Hour)
	ca, other := newTestCA(t, hour.Add(time.Hour)), newTestCA(t, hour.Add(time.Hour))
	trusted := &bundle{pool: ca.pool()}
	fake := clocktesting.NewFakePassiveClock(time.Now())
	verified := 0
	memory := newCertificateMemory(trusted.options, counting(&verified), fake)
	upstream := requestx509.NewDynamic(trusted.options, requestx509.CommonNameUserConversion)

	agree := func(req *http.Request, want int) {
		t.Helper()
		before := verified
		got, gotOK, gotErr := memory.AuthenticateRequest(req)
		wantResp, wantOK, wantErr := upstream.AuthenticateRequest(req)
		if gotOK != wantOK || (gotErr == nil) != (wantErr == nil) {
			t.Errorf("AuthenticateRequest = %v, %v, want %v, %v as upstream", gotOK, gotErr, wantOK, wantErr)
		}
		if diff := cmp.Diff(wantResp, got); diff != "" {
			t.Errorf("AuthenticateRequest differs from upstream (-want +got):\n%s", diff)
		}
		if verified-before != want {
			t.Errorf("%d verifications, want %d", verified-before, want)
		}
	}

	first := connection(ca.client(t, "ann", hour))
	agree(first, 1)
	agree(first, 0)
	agree(connection(first.TLS.PeerCertificates...), 1) // another connection
	agree(connection(other.client(t, "eve", hour)), 0)  // refused, and refused again
	agree(connection(), 0)
	agree(&http.Request{}, 0)

	trusted.pool = other.pool()
	agree(first, 0) // the bundle that trusted it is gone
	trusted.pool = ca.pool()
	agree(first, 1) // new content, even if it says the same
	agree(first, 0)
	trusted.pool = nil
	agree(first, 0)
}

// TestCertificateMemoryEnds wants a remembered certificate to be verified again from
// the second on in which the first of its chain ends.
func TestCertificateMemoryEnds(t *testing.T) {
	soon, late := time.Now().Add(time.Minute).Truncate(time.Second), time.Now().Add(time.Hour)
	for name, chain := range map[string]struct{ ca, client time.Time }{
		"client": {ca: late, client: soon},
		"CA":     {ca: soon, client: late},
	} {
		t.Run(name, func(t *testing.T) {
			ca := newTestCA(t, chain.ca)
			trusted := &bundle{pool: ca.pool()}
			fake := clocktesting.NewFakePassiveClock(time.Now())
			verified := 0
			memory := newCertificateMemory(trusted.options, counting(&verified), fake)
			req := connection(ca.client(t, "ann", chain.client))
			for _, step := range []struct {
				at   time.Time
				want int
			}{{time.Now(), 1}, {soon.Add(-time.Nanosecond), 1}, {soon, 2}} {
				fake.SetTime(step.at)
				if _, _, err := memory.AuthenticateRequest(req); err != nil {
					t.Fatal(err)
				}
				if verified != step.want {
					t.Errorf("at %v: %d verifications, want %d", step.at, verified, step.want)
				}
			}
		})
	}
}

// TestCertificateMemoryForgets wants the memory of a connection to go with it.
func TestCertificateMemoryForgets(t *testing.T) {
	hour := time.Now().Add(time.Hour)
	ca := newTestCA(t, hour)
	trusted := &bundle{pool: ca.pool()}
	memory := newCertificateMemory(trusted.options, requestx509.CommonNameUserConversion, clock.RealClock{})
	if _, ok, err := memory.AuthenticateRequest(connection(ca.client(t, "ann", hour))); !ok || err != nil {
		t.Fatalf("AuthenticateRequest = %v, %v", ok, err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		runtime.GC()
		remembered := errors.New("remembered")
		var err error
		memory.outcomes.Range(func(any, any) bool {
			err = remembered
			return false
		})
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the memory outlives the connection")
		}
		runtime.Gosched()
	}
}

func BenchmarkCertificate(b *testing.B) {
	hour := time.Now().Add(time.Hour)
	ca := newTestCA(b, hour)
	trusted := &bundle{pool: ca.pool()}
	req := connection(ca.client(b, "ann", hour))
	for name, request := range map[string]authenticator.Request{
		"upstream":   requestx509.NewDynamic(trusted.options, requestx509.CommonNameUserConversion),
		"remembered": newCertificateMemory(trusted.options, requestx509.CommonNameUserConversion, clock.RealClock{}),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, ok, err := request.AuthenticateRequest(req); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
	}
}
