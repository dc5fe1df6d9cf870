package client_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/kubernetes/pkg/serviceaccount"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/authn/client"
	"github.com/trigate/trigate/services/authn/internal/authntest"
	"github.com/trigate/trigate/services/authn/internal/chain"
	"github.com/trigate/trigate/services/authn/internal/keys"
	"github.com/trigate/trigate/services/authn/internal/revocations"
	"github.com/trigate/trigate/services/authn/server"
	"github.com/trigate/trigate/services/internal/dial"
	"github.com/trigate/trigate/services/internal/process"
	"github.com/trigate/trigate/services/internal/serve"
	"github.com/trigate/trigate/services/internal/servetest"
)

const (
	issuer    = "https://kubernetes.default.svc"
	oldIssuer = "https://old.example.com"
	otherAud  = "https://vault.example.com"
)

func TestMain(m *testing.M) { servetest.Main(m) }

// setup is what both kinds of kube-apiserver's chain are built from: the one in
// process, and the one behind gRPC.
type setup struct {
	key     authntest.Key // signs and verifies
	oldKey  authntest.Key // verifies only
	objects []runtime.Object
	// change sets further flags.
	change func(*kubeoptions.BuiltInAuthenticationOptions)
}

func newSetup(t testing.TB) *setup {
	return &setup{key: authntest.NewRSAKey(t), oldKey: authntest.NewRSAKey(t), objects: objects()}
}

// objects are what tokens are bound to.
func objects() []runtime.Object {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-of-" + name)}
	}
	gone := meta("gone")
	gone.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(-time.Hour)}
	gone.Finalizers = []string{"example.com/wait"}
	return []runtime.Object{
		&corev1.ServiceAccount{ObjectMeta: meta("cart"), Secrets: []corev1.ObjectReference{{Name: "automatic"}}},
		&corev1.ServiceAccount{ObjectMeta: gone},
		&corev1.Pod{ObjectMeta: meta("cart-0"), Spec: corev1.PodSpec{ServiceAccountName: "cart", NodeName: "node-1"}},
		&corev1.Secret{ObjectMeta: meta("bound"), Type: corev1.SecretTypeOpaque},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "uid-of-node-1"}},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-abcdef"},
			Type:       bootstrapapi.SecretTypeBootstrapToken,
			Data: map[string][]byte{
				bootstrapapi.BootstrapTokenIDKey:               []byte("abcdef"),
				bootstrapapi.BootstrapTokenSecretKey:           []byte("0123456789abcdef"),
				bootstrapapi.BootstrapTokenUsageAuthentication: []byte("true"),
				bootstrapapi.BootstrapTokenExtraGroupsKey:      []byte("system:bootstrappers:ours"),
			},
		},
	}
}

// legacyToken makes the token of a secret, and the secret.
func (s *setup) legacyToken(t testing.TB, secret string, labels map[string]string) string {
	t.Helper()
	token := authntest.Sign(t, s.key, "", authntest.Claims{
		"iss":                                    serviceaccount.LegacyIssuer,
		"sub":                                    "system:serviceaccount:shop:cart",
		"kubernetes.io/serviceaccount/namespace": "shop",
		"kubernetes.io/serviceaccount/secret.name":          secret,
		"kubernetes.io/serviceaccount/service-account.name": "cart",
		"kubernetes.io/serviceaccount/service-account.uid":  "uid-of-cart",
	})
	s.objects = append(s.objects, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: secret, UID: types.UID("uid-of-" + secret), Labels: labels},
		Type:       corev1.SecretTypeServiceAccountToken,
		Data:       map[string][]byte{corev1.ServiceAccountTokenKey: []byte(token), "ca.crt": []byte("not a token")},
	})
	return token
}

func (s *setup) configure(o *kubeoptions.BuiltInAuthenticationOptions) *kubeoptions.BuiltInAuthenticationOptions {
	o.ServiceAccounts.Issuers = []string{issuer, oldIssuer}
	o.ServiceAccounts.KeyFiles = []string{s.key.PublicFile, s.oldKey.PublicFile}
	o.BootstrapToken.Enable = true
	if s.change != nil {
		s.change(o)
	}
	return o
}

// newStock builds the chain of a stock kube-apiserver in process, as far as it is
// about tokens.
func newStock(t testing.TB, s *setup) authenticator.Request {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(stop)
	options := s.configure(kubeoptions.NewBuiltInAuthenticationOptions().
		WithBootstrapToken().WithOIDC().WithServiceAccounts().WithTokenFile().WithWebHook())
	kubernetes := fake.NewClientset(s.objects...)
	factory := informers.NewSharedInformerFactory(kubernetes, 0)
	var info genericapiserver.AuthenticationInfo
	if err := options.ApplyTo(ctx, &info, nil, nil, &openapicommon.Config{}, nil, kubernetes, factory, "stock"); err != nil {
		t.Fatalf("building the stock chain: %v", err)
	}
	factory.Start(ctx.Done())
	t.Cleanup(func() { stop(); factory.Shutdown() })
	for informer, synced := range factory.WaitForCacheSync(t.Context().Done()) {
		if !synced {
			t.Fatalf("informer of %s is not synced", informer)
		}
	}
	return info.Authenticator
}

// service is the authentication service, running.
type service struct {
	*servetest.Running
	keys *keys.Keys
	// kubernetes is the API that the service reads. A fake one: the real one is
	// the gateway's, which the end-to-end tests run.
	kubernetes *fake.Clientset
}

// newService runs the service behind mTLS.
func newService(t testing.TB, s *setup) *service {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(stop)
	options := s.configure(chain.NewOptions())
	kubernetes := fake.NewClientset(s.objects...)
	factory := process.NewInformerFactory(kubernetes)
	loaded, err := keys.Load(keys.Config{
		Issuer:               issuer,
		SigningKeyFile:       s.key.PrivateFile,
		VerificationKeyFiles: options.ServiceAccounts.KeyFiles,
	})
	if err != nil {
		t.Fatalf("keys.Load: %v", err)
	}
	tokens, err := chain.New(ctx, chain.Config{
		Options: options, PublicKeys: loaded, Client: kubernetes, Informers: factory, ServerID: "trigate",
	})
	if err != nil {
		t.Fatalf("chain.New: %v", err)
	}
	hub := revocations.NewHub(nil)
	if err := hub.Watch(factory); err != nil {
		t.Fatalf("Watch: %v", err)
	}
	reading := process.NewInformers(process.InformersConfig{Factories: []process.InformerFactory{factory}})
	var task serve.Task
	running := servetest.Start(t, servetest.NewPKI(t), serve.Config{
		Name: "authn", Policy: server.Policy(), Tokens: tokens,
	}, func(grpcServer *serve.Server) {
		authnv1.RegisterAuthenticationServiceServer(grpcServer, server.New(server.Config{Tokens: tokens, Keys: loaded, Revocations: hub}))
		task = reading.Task(grpcServer.Health())
	}, serve.Task{Name: process.InformersPart, Run: func(ctx context.Context) error { return task.Run(ctx) }})
	return &service{Running: running, keys: loaded, kubernetes: kubernetes}
}

// connect dials as a gateway does.
func (s *service) connect(t testing.TB) *client.Conn {
	t.Helper()
	known := client.Service()
	conn := s.Dial(t, s.PKI.Process(t, "gateway"), func(cfg *dial.Config) {
		cfg.Budgets, cfg.SafeMethods = known.Budgets, known.SafeMethods
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := conn.WaitReady(ctx); err != nil {
		t.Fatalf("WaitReady() = %v, want nil", err)
	}
	return conn
}

// gatewayChain is what a gateway makes of a token authenticator, which is what
// kube-apiserver makes of its own.
func gatewayChain(tokens authenticator.Token) authenticator.Request {
	return group.NewAuthenticatedGroupAdder(union.New(bearertoken.New(tokens), websocket.NewProtocolAuthenticator(tokens)))
}

func writeTokenFile(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens.csv")
	servetest.WriteFile(t, path, []byte(content))
	return path
}

func headerRequest(ctx context.Context, token string) *http.Request {
	r := &http.Request{Header: http.Header{"Authorization": {"Bearer " + token}}}
	return r.WithContext(ctx)
}

func websocketRequest(ctx context.Context, token string) *http.Request {
	r := &http.Request{Header: http.Header{
		"Connection":             {"Upgrade"},
		"Upgrade":                {"websocket"},
		"Sec-Websocket-Protocol": {"v4.channel.k8s.io, base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(token))},
	}}
	return r.WithContext(ctx)
}

// keyID returns upstream's ID of a key.
func keyID(t testing.TB, key authntest.Key) string {
	t.Helper()
	getter, err := serviceaccount.StaticPublicKeysGetter([]any{key.Private.Public()})
	if err != nil {
		t.Fatalf("reading a public key: %v", err)
	}
	return getter.GetPublicKeys(t.Context(), "")[0].KeyID
}

// listenAgain opens a listener on an address that was free a moment ago.
func listenAgain(t testing.TB, address string) net.Listener {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatalf("listening on %s: %v", address, err)
	}
	return listener
}

// validClaims are what a gateway has signed.
func validClaims(t testing.TB) []byte {
	t.Helper()
	claims := authntest.ServiceAccountClaims(issuer, "shop", "cart", "uid-of-cart", []string{issuer}, nil)
	encoded, err := json.Marshal(claims.With("iss", nil))
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}
