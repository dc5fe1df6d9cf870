package stage

import (
	"context"
	"errors"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/apiserver/pkg/storage/storagebackend"
)

// etcdAt is the configuration of a storage without TLS.
func etcdAt(servers ...string) storagebackend.Config {
	return storagebackend.Config{Prefix: "/registry", Transport: storagebackend.TransportConfig{ServerList: servers}}
}

// freeURL is a URL that nobody listens on.
func freeURL(t *testing.T) url.URL {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return url.URL{Scheme: "http", Host: listener.Addr().String()}
}

func TestAwaitEtcdThatComesLate(t *testing.T) {
	clients := freeURL(t)
	ended := make(chan error, 1)
	go func() { ended <- awaitEtcd(t.Context(), etcdAt(clients.String()), time.Minute) }()
	select {
	case err := <-ended:
		t.Fatalf("awaitEtcd without etcd = %v, want it to wait", err)
	case <-time.After(2 * etcdPause): // it has asked, and asks again
	}
	server, err := embed.StartEtcd(etcdConfig(t, clients))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if err := <-ended; err != nil {
		t.Errorf("awaitEtcd = %v, want nil", err)
	}
}

func TestAwaitEtcdSaysWhatAndWhy(t *testing.T) {
	nowhere := freeURL(t)
	missing := filepath.Join(t.TempDir(), "missing")
	tests := []struct {
		name   string
		change func(*storagebackend.TransportConfig)
		want   []string
	}{
		{"nobody listens", func(*storagebackend.TransportConfig) {}, []string{"--etcd-servers " + nowhere.String() + ":", "within 1s", "--etcd-startup-timeout", "connection refused"}},
		{"no CA", func(c *storagebackend.TransportConfig) { c.TrustedCAFile = missing }, []string{"--etcd-cafile:", missing}},
		{"no certificate", func(c *storagebackend.TransportConfig) { c.CertFile = missing }, []string{"--etcd-certfile, --etcd-keyfile:", missing}},
		{"no address", func(c *storagebackend.TransportConfig) { c.ServerList = []string{"http://bad host"} }, []string{"--etcd-servers http://bad host:"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			config := etcdAt(nowhere.String())
			test.change(&config.Transport)
			err := awaitEtcd(t.Context(), config, time.Second)
			if err == nil {
				t.Fatal("awaitEtcd = nil, want an error")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("awaitEtcd = %q, want %q in it", err, want)
				}
			}
		})
	}
}

// TestAwaitEtcdEndsWithItsContext is about a process that is told to stop meanwhile.
func TestAwaitEtcdEndsWithItsContext(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // that never answers
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), etcdPause)
	defer cancel()
	begin := time.Now()
	if err := awaitEtcd(ctx, etcdAt("http://"+listener.Addr().String()), 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("awaitEtcd = %v, want the context's error", err)
	}
	if took := time.Since(begin); took > etcdQuestionTimeout {
		t.Errorf("awaitEtcd took %s, want it to end with the context", took)
	}
}
