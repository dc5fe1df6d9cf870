// Package rotation tests that keys and certificates change under load without
// anything failing or restarting, and that those of strangers are refused.
package rotation

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/util/cert"

	"github.com/trigate/trigate/deploy/pki"
	"github.com/trigate/trigate/deploy/test/framework"
	pkiapp "github.com/trigate/trigate/deploy/trigate-pki/app"
)

func TestMain(m *testing.M) { framework.Main(m) }

// maxAge is how old a connection to a gate gets in these tests, so that within them
// the gateway has to show its certificate anew.
const maxAge = 2 * time.Second

// servers are the processes that serve, and what with.
var servers = map[string]pki.Name{
	"gateway": pki.APIServer, "authn": pki.Authn, "authz": pki.Authz, "admission": pki.Admission, "etcd": pki.EtcdServer,
}

// gates are the services.
var gates = []pki.Name{pki.Authn, pki.Authz, pki.Admission}

func rules(rules ...rbacv1.PolicyRule) []rbacv1.PolicyRule { return rules }

// TestRenewedUnderLoad renews all certificates, replaces the authority of the gates
// and the key of service-account tokens, and wants each process to take what is new.
func TestRenewedUnderLoad(t *testing.T) {
	var args []string
	for _, gate := range gates {
		args = append(args, fmt.Sprintf("--%s-arg=--max-connection-age=%s", gate, maxAge))
	}
	c := framework.StartTrigate(t, framework.TrigateOptions{Args: args})
	before := pids(t, c)
	tr := startTraffic(t, c)
	tr.goesOn(t)

	trigatePKI(t, c, "renew", "--all")
	awaitServed(t, c)
	tr.goesOn(t)

	// What the old gates' authority has signed is good for nothing in the end, so that
	// what goes on then does so by new certificates, on both sides.
	old := keyPair(t, c.PKI, pki.Gateway)
	trigatePKI(t, c, "rotate", "--authority=gates-ca", "--step=add")
	tr.goesOn(t)
	trigatePKI(t, c, "rotate", "--authority=gates-ca", "--step=use")
	awaitServed(t, c)
	tr.goesOn(t)
	tr.outlives(t)
	trigatePKI(t, c, "rotate", "--authority=gates-ca", "--step=retire")
	for _, gate := range gates {
		if err := greet(t, c, string(gate), old); err == nil {
			t.Errorf("%s accepts what a retired authority has signed", gate)
		}
		if err := greet(t, c, string(gate), keyPair(t, c.PKI, pki.Gateway)); err != nil {
			t.Errorf("%s refuses the gateway: %v", gate, err)
		}
	}
	tr.outlives(t)
	tr.goesOn(t)

	token := c.ServiceAccountToken(t, namespace, robot)
	trigatePKI(t, c, "rotate", "--authority=sa", "--step=add")
	tr.goesOn(t)
	trigatePKI(t, c, "rotate", "--authority=sa", "--step=use")
	framework.Eventually(t, "the new key signs", func() error {
		if keyID(t, c.ServiceAccountToken(t, namespace, robot)) == keyID(t, token) {
			return errors.New("it is the old one")
		}
		return nil
	})
	c.As(t, c.Token(t, token)).Send(t, http.MethodGet, "/api/v1/namespaces/"+namespace+"/configmaps?limit=1", "").Want(t, http.StatusOK)
	tr.goesOn(t)

	tr.stop(t, c)
	if after := pids(t, c); !maps.Equal(before, after) {
		t.Errorf("processes are %v, want %v as before", after, before)
	}
	for name := range before {
		if log, err := os.ReadFile(filepath.Join(c.Dir, "logs", name+".log")); err != nil || bytes.Contains(log, []byte("PRIVATE KEY")) {
			t.Errorf("the log of %s: %v, want one without keys", name, err)
		}
	}
}

// TestStrangersAreRefused has callers, and then a service, with certificates that
// are right in all but their authority.
func TestStrangersAreRefused(t *testing.T) {
	p := framework.NewParts(t, framework.PartsOptions{})
	p.Start(t, p.Names()...)
	p.AwaitReady(t)
	strangers, err := pki.Ensure(t.Context(), pki.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	for name, identity := range map[string]pki.Name{"authn": pki.Gateway, "authz": pki.Gateway, "admission": pki.Gateway, "etcd": pki.EtcdClient} {
		if err := greet(t, p.Cluster, name, keyPair(t, p.PKI, identity)); err != nil {
			t.Errorf("%s refuses the gateway: %v", name, err)
		}
		if err := greet(t, p.Cluster, name, keyPair(t, strangers, identity)); err == nil || !strings.Contains(err.Error(), "unknown certificate authority") {
			t.Errorf("%s to a stranger: %v, want it to know no such authority", name, err)
		}
	}

	jane := p.As(t, p.User(t, "jane"))
	jane.Send(t, http.MethodGet, "/api/v1/secrets", "").Want(t, http.StatusForbidden)
	for _, path := range []string{p.PKI.Cert(pki.Authz), p.PKI.Key(pki.Authz)} {
		content, err := os.ReadFile(filepath.Join(strangers.Dir, filepath.Base(path)))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.Kill(t, "authz")
	p.Start(t, "authz")
	framework.Eventually(t, "the gateway says why", func() error {
		for line := range strings.Lines(p.Log(t, "gateway")) {
			if strings.Contains(line, "Waiting for a gate") && strings.Contains(line, `gate="authz"`) && strings.Contains(line, "unknown authority") {
				return nil
			}
		}
		return errors.New("it does not")
	})
	jane.Send(t, http.MethodGet, "/api/v1/secrets", "").Want(t, http.StatusServiceUnavailable)
	if _, err := p.Probe(t, "/readyz/gate-authz"); err == nil {
		t.Error("/readyz/gate-authz is ok")
	}
}

// trigatePKI runs a command on the cluster's directory.
func trigatePKI(t *testing.T, c *framework.Cluster, args ...string) {
	t.Helper()
	var out, errOut bytes.Buffer
	if code := pkiapp.Main(append(args, "--dir="+c.PKI.Dir), &out, &errOut); code != 0 {
		t.Fatalf("trigate-pki %q = %d: %s", args, code, errOut.String())
	}
	if !strings.Contains(out.String(), c.PKI.Dir) {
		t.Fatalf("trigate-pki %q has written nothing: %s", args, out.String())
	}
}

// awaitServed waits until each server shows the certificate that its file has now.
func awaitServed(t *testing.T, c *framework.Cluster) {
	t.Helper()
	for name, identity := range servers {
		want := certificate(t, c.PKI, identity)
		framework.EventuallyWithin(t, 2*framework.Timeout, name+" shows its new certificate", func() error {
			var shown *x509.Certificate
			conn, err := tls.Dial("tcp", address(t, c, name), &tls.Config{
				InsecureSkipVerify: true, // what it is shown is compared as a whole
				VerifyConnection: func(state tls.ConnectionState) error {
					shown = state.PeerCertificates[0]
					return nil
				},
			})
			if err == nil {
				_ = conn.Close()
			}
			if shown == nil {
				return err
			}
			if !shown.Equal(want) {
				return fmt.Errorf("it is that of %s", shown.NotBefore)
			}
			return nil
		})
	}
}

// outlives waits until each connection to a gate that is there now has ended of age.
func (tr *traffic) outlives(t *testing.T) {
	t.Helper()
	// A server ends a connection up to a tenth later than at that age.
	for end := time.Now().Add(2 * maxAge); time.Now().Before(end); {
		tr.goesOn(t)
	}
}

// greet opens a connection with a certificate and waits for the server's first
// bytes, which it sends to whom it lets in.
func greet(t *testing.T, c *framework.Cluster, name string, pair tls.Certificate) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), framework.Timeout)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{
		InsecureSkipVerify: true, // the question is whom the server lets in
		Certificates:       []tls.Certificate{pair},
		NextProtos:         []string{"h2"},
	}}
	conn, err := dialer.DialContext(ctx, "tcp", address(t, c, name))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(framework.Timeout)); err != nil {
		return err
	}
	// The client's part of HTTP/2 comes first.
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 9))
	return err
}

// address is where a process of the local runner listens.
func address(t *testing.T, c *framework.Cluster, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(c.Dir, "ports.json"))
	if err != nil {
		t.Fatal(err)
	}
	ports := map[string]int{}
	if err := json.Unmarshal(content, &ports); err != nil || ports[name] == 0 {
		t.Fatalf("the port of %s: %v in %s", name, err, content)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[name]))
}

// pids are the ids of all processes, by name.
func pids(t *testing.T, c *framework.Cluster) map[string]int {
	t.Helper()
	ids := map[string]int{}
	for _, name := range []string{"etcd", "authn", "authz", "admission", "gateway", "controllers"} {
		pid, err := c.PID(name)
		// Controllers start when all else is ready.
		if err != nil {
			t.Fatal(err)
		}
		ids[name] = pid
	}
	return ids
}

func certificate(t *testing.T, layout *pki.Layout, name pki.Name) *x509.Certificate {
	t.Helper()
	certs, err := cert.CertsFromFile(layout.Cert(name))
	if err != nil {
		t.Fatal(err)
	}
	return certs[0]
}

func keyPair(t *testing.T, layout *pki.Layout, name pki.Name) tls.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(layout.Cert(name), layout.Key(name))
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// keyID is that of the key that signed a token.
func keyID(t *testing.T, token string) string {
	t.Helper()
	header, _, _ := strings.Cut(token, ".")
	content, err := base64.RawURLEncoding.DecodeString(header)
	if err != nil {
		t.Fatal(err)
	}
	var parsed struct{ Kid string }
	if err := json.Unmarshal(content, &parsed); err != nil {
		t.Fatal(err)
	}
	return parsed.Kid
}
