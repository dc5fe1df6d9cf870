package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/trigate/trigate/deploy/local/app"
)

// fakeDirEnv names the directory by which a test and its fake programs talk:
// events gets a line for each start and end of one, and a file NAME.fail or
// NAME.stubborn, named for the program, makes it misbehave.
const fakeDirEnv = "TRIGATE_LOCAL_TEST_DIR"

// TestMain makes this test program all the programs that trigate-local runs, and
// trigate-local itself, told apart by the name they are called by. So these tests
// supervise processes that behave as the real ones do towards a runner, and real
// etcd, and need nothing to be built before.
func TestMain(m *testing.M) {
	switch name := filepath.Base(os.Args[0]); name {
	case "trigate-local":
		os.Exit(app.Main(os.Args[1:], os.Stdout, os.Stderr))
	case "trigate-gateway":
		runFake(name, fakeGateway)
	case "trigate-authn", "trigate-authz", "trigate-admission":
		runFake(name, fakeService)
	case "kube-controller-manager":
		runFake(name, func(ctx context.Context, _ fakeFlags) error {
			<-ctx.Done()
			return nil
		})
	default:
		os.Exit(m.Run())
	}
}

// runFake runs a fake program from its start to SIGTERM.
func runFake(name string, run func(context.Context, fakeFlags) error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	dir := os.Getenv(fakeDirEnv)
	event(dir, "start", name, strings.Join(os.Args[1:], " "))
	if message, err := os.ReadFile(filepath.Join(dir, name+".fail")); err == nil {
		log.SetFlags(0)
		log.Fatal(string(message))
	}
	if err := run(ctx, fakeFlags(os.Args[1:])); err != nil {
		log.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, name+".stubborn")); err == nil {
		event(dir, "ignore", name, "")
		for range time.Tick(time.Hour) { // not select{}, which the runtime takes for a deadlock
		}
	}
	event(dir, "end", name, "")
}

// event appends a line, which for what the tests do is written in one piece.
func event(dir, what, name, args string) {
	file, err := os.OpenFile(filepath.Join(dir, "events"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if _, err := fmt.Fprintln(file, what, name, args); err != nil {
		log.Fatal(err)
	}
}

// fakeFlags are arguments of the form --NAME=VALUE; the last of a name counts.
type fakeFlags []string

func (f fakeFlags) get(name string) string {
	value := ""
	for _, arg := range f {
		if v, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
			value = v
		}
	}
	return value
}

// tlsConfig is made of the files that the flags name.
func (f fakeFlags) tlsConfig(certFlag, keyFlag, caFlag string) (*tls.Config, error) {
	certificate, err := tls.LoadX509KeyPair(f.get(certFlag), f.get(keyFlag))
	if err != nil {
		return nil, err
	}
	authorities, err := os.ReadFile(f.get(caFlag))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authorities)
	return &tls.Config{
		Certificates: []tls.Certificate{certificate},
		RootCAs:      pool,
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	}, nil
}

// fakeService shakes hands with who has a certificate of the gates authority.
func fakeService(ctx context.Context, flags fakeFlags) error {
	config, err := flags.tlsConfig("tls-cert-file", "tls-private-key-file", "peer-ca-file")
	if err != nil {
		return err
	}
	server := http.Server{TLSConfig: config}
	listener, err := net.Listen("tcp", flags.get("listen-address"))
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ServeTLS(listener, "", ""); err != http.ErrServerClosed {
		return err
	}
	return nil
}

// fakeGateway is ready when etcd and all replicas of all services are reached with
// the certificates that it was given. Only certificates of the cluster authority
// may ask.
func fakeGateway(ctx context.Context, flags fakeFlags) error {
	serving, err := flags.tlsConfig("tls-cert-file", "tls-private-key-file", "client-ca-file")
	if err != nil {
		return err
	}
	gates, err := flags.tlsConfig("gates-client-cert-file", "gates-client-key-file", "gates-ca-file")
	if err != nil {
		return err
	}
	etcd, err := flags.tlsConfig("etcd-certfile", "etcd-keyfile", "etcd-cafile")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		var failed []string
		for _, gate := range []string{"authn", "authz", "admission"} {
			for _, address := range strings.Split(flags.get(gate+"-endpoint"), ",") {
				config := gates.Clone()
				config.ServerName = "trigate-" + gate
				if err := shakeHands(address, config); err != nil {
					failed = append(failed, gate)
				}
			}
		}
		if err := checkEtcd(flags.get("etcd-servers"), etcd); err != nil {
			failed = append(failed, "etcd")
		}
		if len(failed) > 0 {
			w.WriteHeader(http.StatusInternalServerError)
			for _, check := range failed {
				_, _ = fmt.Fprintf(w, "[-]%s failed: reason withheld\n", check)
			}
		}
	})
	server := http.Server{Handler: mux, TLSConfig: serving}
	listener, err := net.Listen("tcp", net.JoinHostPort(flags.get("bind-address"), flags.get("secure-port")))
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ServeTLS(listener, "", ""); err != http.ErrServerClosed {
		return err
	}
	return nil
}

func shakeHands(address string, config *tls.Config) error {
	conn, err := tls.Dial("tcp", address, config)
	if err != nil {
		return err
	}
	return conn.Close()
}

func checkEtcd(url string, config *tls.Config) error {
	client := http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	response, err := client.Get(url + "/health")
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if !strings.Contains(string(body), `"health":"true"`) {
		return fmt.Errorf("etcd says %s", body)
	}
	return nil
}
