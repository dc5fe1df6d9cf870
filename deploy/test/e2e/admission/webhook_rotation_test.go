package admission

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certutil "k8s.io/client-go/util/cert"

	"github.com/trigate/trigate/deploy/test/framework"
)

// base64Of is how manifests hold certificates.
func base64Of(content []byte) string { return base64.StdEncoding.EncodeToString(content) }

// authority is one that has signed a certificate for the loopback address.
type authority struct {
	bundle      []byte
	certificate tls.Certificate
	// reviews counts what was reviewed with the certificate.
	reviews atomic.Int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	certPEM, keyPEM, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	// The first is the certificate itself, the last its authority's.
	last := certificate.Certificate[len(certificate.Certificate)-1]
	return &authority{bundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: last}), certificate: certificate}
}

// rotating is a webhook whose certificate changes while it serves. As a server does
// that is replaced in good order, it answers what it was asked on a connection before
// it closes it.
type rotating struct {
	*framework.Webhook
	current     atomic.Pointer[authority]
	connections sync.Map // of what authority a connection's certificate is, by its address
}

func startRotating(t *testing.T, first *authority) *rotating {
	t.Helper()
	r := &rotating{}
	r.current.Store(first)
	review := framework.Admission(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return framework.JSONPatch(`[{"op":"add","path":"/data","value":{"changed":"yes"}}]`)
	})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		used, _ := r.connections.Load(req.RemoteAddr)
		used.(*authority).reviews.Add(1)
		if used != r.current.Load() {
			w.Header().Set("Connection", "close")
		}
		review.ServeHTTP(w, req)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		current := r.current.Load()
		r.connections.Store(hello.Conn.RemoteAddr().String(), current)
		return &tls.Config{Certificates: []tls.Certificate{current.certificate}}, nil
	}}
	server.StartTLS()
	t.Cleanup(server.Close)
	r.Webhook = &framework.Webhook{URL: server.URL, CABundle: first.bundle}
	return r
}

// TestCertificatesOfWebhooksRotateUnderLoad has a webhook get a certificate of another
// authority while it is called: first both authorities are trusted, then the
// certificate changes, and then the old authority goes. No request may fail.
func TestCertificatesOfWebhooksRotateUnderLoad(t *testing.T) {
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		ns := c.Namespace(t)
		before, after := newAuthority(t), newAuthority(t)
		hook := startRotating(t, before)
		c.RegisterMutating(t, "trigate-test-rotation", hook.Mutating("rotating", ns, configMaps))

		client := c.Client(t).CoreV1().ConfigMaps(ns)
		write := func(ctx context.Context) error {
			object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "rotating"}}
			made, err := client.Create(ctx, object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err == nil && made.Data["changed"] != "yes" {
				err = errors.New("the webhook's change is missing")
			}
			return err
		}
		ctx, cancel := context.WithCancel(t.Context())
		var writers sync.WaitGroup
		for range 8 {
			writers.Go(func() {
				for ctx.Err() == nil {
					// The last one is not cut short.
					if err := write(context.WithoutCancel(ctx)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		stop := func() {
			cancel()
			writers.Wait()
		}
		defer stop()

		awaitReviews(t, before)
		trust(t, c, hook, ns, slices.Concat(before.bundle, after.bundle), 402)
		awaitReviews(t, before)
		hook.current.Store(after)
		awaitReviews(t, after)
		trust(t, c, hook, ns, after.bundle, 409)
		awaitReviews(t, after)
		stop()

		// Whoever has the old certificate is not believed any more.
		hook.current.Store(before)
		framework.Eventually(t, "distrust", func() error {
			err := write(t.Context())
			if err == nil {
				return errors.New("the connection from before is still in use")
			}
			if want := "certificate signed by unknown authority"; !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
			return nil
		})
	})
}

// awaitReviews waits for more reviews with an authority's certificate.
func awaitReviews(t *testing.T, a *authority) {
	t.Helper()
	want := a.reviews.Load() + 30
	framework.Eventually(t, "more reviews", func() error {
		if got := a.reviews.Load(); got < want {
			return fmt.Errorf("there are %d, want %d", got, want)
		}
		return nil
	})
}

// trust changes the authorities by which the webhook is verified, and waits until that
// is in force: with it comes a webhook that refuses Secrets with a code.
func trust(t *testing.T, c *framework.Cluster, hook *rotating, ns string, bundle []byte, code int) {
	t.Helper()
	marker := framework.StartWebhook(t, framework.Admission(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Result: &metav1.Status{Code: int32(code), Message: "in force"}}
	}))
	client := c.Client(t).AdmissionregistrationV1().MutatingWebhookConfigurations()
	config, err := client.Get(t.Context(), "trigate-test-rotation", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config.Webhooks[0].ClientConfig.CABundle = bundle
	config.Webhooks = append(config.Webhooks[:1:1], marker.Mutating("in-force", ns, framework.Rule("create", "", "v1", "secrets")))
	if _, err := client.Update(t.Context(), config, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Admin(t).Await(t, "POST", core(ns, "secrets")+"?dryRun=All", "{apiVersion: v1, kind: Secret, metadata: {name: s}}", code)
}
