package stage

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"path"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
)

const (
	// etcdQuestionTimeout bounds one question to etcd. It is long enough for a TLS
	// handshake and a quorum read on a busy machine.
	etcdQuestionTimeout = 5 * time.Second
	// etcdPause is how long to wait after an answer that was an error.
	etcdPause = 200 * time.Millisecond
	// etcdMaxBackoff is the longest pause between two attempts to connect.
	etcdMaxBackoff = time.Second
	// etcdNews is how often the log says that etcd does not answer.
	etcdNews = 10 * time.Second
)

// awaitEtcd waits until etcd answers a read, for at most timeout, or without limit
// if that is 0. Upstream's storage gives up after 20 s, and does not say which etcd
// it could not reach, nor why. The error names the flag.
func awaitEtcd(ctx context.Context, storage storagebackend.Config, timeout time.Duration) error {
	client, err := newEtcdClient(storage.Transport)
	if err != nil {
		return err
	}
	defer client.Close()
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %s, which is --etcd-startup-timeout", timeout))
		defer cancel()
	}
	servers := strings.Join(storage.Transport.ServerList, ",")
	key := path.Join("/", storage.Prefix, "health") // upstream's health check reads it
	news := time.Now().Add(etcdPause)
	reason := "the connection is not established"
	for {
		err := askEtcd(ctx, client, key)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("--etcd-servers %s: %w: %s", servers, context.Cause(ctx), reason)
		}
		reason = status.Convert(err).Message()
		if now := time.Now(); now.After(news) {
			klog.FromContext(ctx).Info("Waiting for etcd", "servers", servers, "reason", reason)
			news = now.Add(etcdNews)
		}
		select {
		case <-ctx.Done():
		case <-time.After(etcdPause):
		}
	}
}

// askEtcd reads a key that need not be there. Reads of this client wait for a
// connection, and then have no error but the deadline; so it asks first what does not
// wait and has the reason. What answers in another way is no reason not to read.
func askEtcd(ctx context.Context, client *clientv3.Client, key string) error {
	ctx, cancel := context.WithTimeout(ctx, etcdQuestionTimeout)
	defer cancel()
	_, err := healthpb.NewHealthClient(client.ActiveConnection()).Check(ctx, &healthpb.HealthCheckRequest{})
	if status.Code(err) == codes.Unavailable {
		return err
	}
	_, err = client.Get(ctx, key)
	return err
}

// newEtcdClient returns a client that tries to connect again soon.
func newEtcdClient(config storagebackend.TransportConfig) (*clientv3.Client, error) {
	tlsConfig, err := etcdTLS(config)
	if err != nil {
		return nil, err
	}
	options := []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: etcdPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: etcdMaxBackoff},
		MinConnectTimeout: etcdQuestionTimeout,
	})}
	if config.EgressLookup != nil {
		dialer, err := config.EgressLookup(egressselector.Etcd.AsNetworkContext())
		if err != nil {
			return nil, fmt.Errorf("--egress-selector-config-file: %w", err)
		}
		if dialer != nil {
			options = append(options, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				return dialer(ctx, "tcp", address)
			}))
		}
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: config.ServerList, TLS: tlsConfig, DialOptions: options,
		Logger: zap.NewNop(), // what it has to say is in the error
	})
	if err != nil {
		return nil, fmt.Errorf("--etcd-servers %s: %w", strings.Join(config.ServerList, ","), err)
	}
	return client, nil
}

// etcdTLS is nil if none of the files is given: that is how the client is told to
// do without TLS.
func etcdTLS(config storagebackend.TransportConfig) (*tls.Config, error) {
	if config.CertFile == "" && config.KeyFile == "" && config.TrustedCAFile == "" {
		return nil, nil
	}
	tlsConfig := &tls.Config{}
	if config.TrustedCAFile != "" {
		pool, err := cert.NewPool(config.TrustedCAFile)
		if err != nil {
			return nil, fmt.Errorf("--etcd-cafile: %w", err)
		}
		tlsConfig.RootCAs = pool
	}
	if config.CertFile != "" || config.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(config.CertFile, config.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("--etcd-certfile, --etcd-keyfile: %w", err)
		}
		tlsConfig.Certificates = []tls.Certificate{pair}
	}
	return tlsConfig, nil
}
