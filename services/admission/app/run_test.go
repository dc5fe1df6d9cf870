package app

import (
	"context"
	"testing"

	apiextensionsfake "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/openapi/openapitest"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/trigate/trigate/services/admission/client"
	"github.com/trigate/trigate/services/admission/server"
	"github.com/trigate/trigate/services/internal/serve"
	"github.com/trigate/trigate/services/internal/servetest"
)

// parse returns the options that flags give.
func parse(t testing.TB, args ...string) *Options {
	t.Helper()
	o := NewOptions()
	servetest.ParseFlags(t, o.AddFlags, args...)
	return o
}

// cluster is what the gateway's API has to say. It is a fake clientset, since
// the real API would be the gateway, whose own tests run the whole: it stores
// and lists, and neither validates nor defaults.
type cluster struct {
	kubernetes kubernetes.Interface
	dynamic    dynamic.Interface
	extensions *apiextensionsfake.Clientset
}

// newCluster returns a cluster with these objects, of which those that are
// custom resource definitions come second.
func newCluster(objects, definitions []runtime.Object) *cluster {
	return &cluster{
		kubernetes: clientset{kubefake.NewClientset(copies(objects)...)},
		dynamic:    dynamicfake.NewSimpleDynamicClient(legacyscheme.Scheme),
		extensions: apiextensionsfake.NewClientset(copies(definitions)...),
	}
}

// clientset is a fake whose discovery has the schemas of the built-in types.
type clientset struct{ *kubefake.Clientset }

func (c clientset) Discovery() discovery.DiscoveryInterfaces { return schemas{c.Clientset.Discovery()} }

type schemas struct{ discovery.DiscoveryInterfaces }

func (schemas) OpenAPIV3() openapi.Client { return openapitest.NewEmbeddedFileClient() }

func copies(objects []runtime.Object) []runtime.Object {
	out := make([]runtime.Object, 0, len(objects))
	for _, object := range objects {
		out = append(out, object.DeepCopyObject())
	}
	return out
}

// start runs the service with flags on a cluster until the test ends, and
// returns a client of it as the gateway's, when it is SERVING.
func start(t *testing.T, cluster *cluster, authorizer authorizer.Authorizer, args ...string) *client.Client {
	t.Helper()
	pki := servetest.NewPKI(t)
	cert := pki.Process(t, "admission")
	o := parse(t, args...)
	listener := servetest.Listen(t)
	config := &Config{
		Serve: serve.Config{
			Name: server.Name, Listener: listener,
			CertFile: cert.CertFile, KeyFile: cert.KeyFile, PeerCAFile: pki.Gates.File, ClientCAFile: pki.Cluster.File,
		},
		Admission: o.Admission, APIs: o.APIs, Egress: o.Egress,
		Loopback:   &rest.Config{Host: "https://127.0.0.1:1"},
		Kubernetes: cluster.kubernetes, Dynamic: cluster.dynamic, Extensions: cluster.extensions,
		Authorizer: authorizer,
	}
	servetest.Go(t, func(ctx context.Context) error { return Run(ctx, config.Complete()) })
	gateway := pki.Process(t, "gateway")
	c, err := client.Dial(client.Config{
		Endpoint: listener.Addr().String(), CAFile: pki.Gates.File, CertFile: gateway.CertFile, KeyFile: gateway.KeyFile,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close() = %v, want nil", err)
		}
	})
	servetest.AwaitReady(t, c)
	return c
}

// nobodyMay is an authorizer that allows nobody but system:masters anything.
func nobodyMay() authorizer.Authorizer { return authorizerfactory.NewAlwaysDenyAuthorizer() }
