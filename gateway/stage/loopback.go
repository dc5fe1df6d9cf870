package stage

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
)

// kubeAPIServer is the name by which Kubernetes knows the server that this one stands
// for.
const kubeAPIServer = "kube-apiserver"

// loopback sets up the client by which the server calls itself: protobuf, and no
// compression on a local network.
//
// Its writes wait until the gates can take them, for as long as the caller's context
// and ctx last, which is the server's. The controllers in this process would otherwise
// fail over and over while a gate is away, and some hooks of upstream end the process
// if that lasts for 30 s.
func loopback(ctx context.Context, config *genericapiserver.Config, waitForWrites func(context.Context) error) error {
	client := config.LoopbackClientConfig
	if client == nil {
		return errors.New("secure serving is off, and nothing else could serve")
	}
	client.ContentConfig.ContentType = "application/vnd.kubernetes.protobuf"
	client.DisableCompression = true
	// What the server writes by itself names its manager in managedFields, and that is
	// taken from the client's name.
	client.UserAgent = strings.Replace(rest.DefaultKubernetesUserAgent(), filepath.Base(os.Args[0]), kubeAPIServer, 1)
	client.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &gatedWrites{next: next, wait: untilEnd(ctx, waitForWrites)}
	})
	return nil
}

var errEnding = errors.New("the server ends, and a gate that this write needs is away")

// untilEnd returns wait that ends with server, too. A controller that waited on would
// hold the lock that who stops it waits for.
func untilEnd(server context.Context, wait func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		stop := context.AfterFunc(server, func() { cancel(errEnding) })
		defer stop()
		if err := wait(ctx); err != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		return nil
	}
}

// gatedWrites holds back requests that change something until wait returns.
type gatedWrites struct {
	next http.RoundTripper
	wait func(context.Context) error
}

var _ http.RoundTripper = (*gatedWrites)(nil)

// RoundTrip implements http.RoundTripper. It is safe for concurrent use.
func (g *gatedWrites) RoundTrip(req *http.Request) (*http.Response, error) {
	switch req.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
	default:
		if err := g.wait(req.Context()); err != nil {
			return nil, err
		}
	}
	return g.next.RoundTrip(req)
}

// WrappedRoundTripper lets client-go find the transport below.
func (g *gatedWrites) WrappedRoundTripper() http.RoundTripper { return g.next }
