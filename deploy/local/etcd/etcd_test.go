package etcd

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRunKeepsData(t *testing.T) {
	dir, address := t.TempDir(), freeAddress(t)
	for _, write := range []bool{true, false} {
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- Run(ctx, arguments(dir, address)) }()
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}})
		if err != nil {
			t.Fatal(err)
		}
		if write {
			if _, err := client.Put(t.Context(), "key", "value"); err != nil {
				t.Fatal(err)
			}
		}
		got, err := client.Get(t.Context(), "key")
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "value" {
			t.Errorf("key = %v, want value", got.Kvs)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v, want nil after it was told to stop", err)
		}
	}
}

func TestRunErrors(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"an unknown flag", []string{"--data-dri=/x"}, "flag provided but not defined: -data-dri"},
		{"an argument", []string{"start"}, `"start" is not a flag`},
		{"a bad value", []string{"--max-wals=x"}, `invalid value "x" for flag -max-wals`},
		{"a bad combination", []string{"--data-dir=" + t.TempDir(), "--election-timeout=1", "--heartbeat-interval=100"}, "--election-timeout"},
		{"a port in use", arguments(t.TempDir(), listener.Addr().String()), "address already in use"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			err := Run(ctx, tt.args)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("Run = %v, want one line with %q", err, tt.want)
			}
		})
	}
}

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		name            string
		args            []string
		client, peer    []string
		initialCluster  string
		quotaBackend    int64
		unsafeNoFsync   bool
		clientAuth      bool
		expectedLogging string
	}{
		{
			name:   "one member",
			args:   []string{"--name=a", "--listen-client-urls=http://127.0.0.1:1", "--advertise-client-urls=http://127.0.0.1:1", "--client-cert-auth"},
			client: []string{"http://127.0.0.1:1"}, initialCluster: "a=http://localhost:2380", clientAuth: true, expectedLogging: "stderr",
		},
		{
			name: "more of etcd's flags",
			args: []string{
				"--listen-peer-urls=http://127.0.0.1:2", "--initial-cluster=a=http://127.0.0.1:2", "--name=a",
				"--initial-advertise-peer-urls=http://127.0.0.1:2", "--quota-backend-bytes=7", "--unsafe-no-fsync", "--log-outputs=stdout",
			},
			client: []string{"http://localhost:2379"}, peer: []string{"http://127.0.0.1:2"}, initialCluster: "a=http://127.0.0.1:2",
			quotaBackend: 7, unsafeNoFsync: true, expectedLogging: "stdout",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config, err := parse(tt.args)
			if err != nil {
				t.Fatal(err)
			}
			var client, peer []string
			for _, u := range config.ListenClientUrls {
				client = append(client, u.String())
			}
			for _, u := range config.ListenPeerUrls {
				peer = append(peer, u.String())
			}
			type summary struct {
				Client, Peer, Logs  []string
				InitialCluster      string
				Quota               int64
				UnsafeNoFsync, Auth bool
			}
			want := summary{tt.client, tt.peer, []string{tt.expectedLogging}, tt.initialCluster, tt.quotaBackend, tt.unsafeNoFsync, tt.clientAuth}
			got := summary{client, peer, config.LogOutputs, config.InitialCluster, config.QuotaBackendBytes, config.UnsafeNoFsync, config.ClientTLSInfo.ClientCertAuth}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("parse (-want +got):\n%s", diff)
			}
		})
	}
}

func arguments(dir, address string) []string {
	return []string{"--data-dir=" + dir, "--listen-client-urls=http://" + address, "--advertise-client-urls=http://" + address, "--log-level=error"}
}

// freeAddress is one that etcd can listen on; etcd takes no listener.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}
