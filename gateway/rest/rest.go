// Package rest is the gates' REST face: what the gRPC services answer, as JSON or YAML
// under /gates/, by grpc-gateway's generated handlers.
//
// It is served inside the API server's own filters, which say who the caller is and
// whether they may ask, and which bound and record the request. The caller is not
// passed on to a gate, unless as the user of a question that names none.
package rest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/apimachinery/pkg/api/meta"
	apiruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/trigate/trigate/gateway/rest/ui"
	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	authzclient "github.com/trigate/trigate/services/authz/client"
)

// Prefix is the path under which everything is.
const Prefix = "/gates/"

// StatusPath answers with a Status.
const StatusPath = Prefix + "status"

// Config is what New needs.
type Config struct {
	// Authn, Authz and Admission are the connections to the services.
	Authn, Authz, Admission grpc.ClientConnInterface
	// Kinds finds the resource of an object's kind.
	Kinds meta.RESTMapper
	// Schemes have the built-in kinds, with their defaults. Of two that know a kind the
	// first counts.
	Schemes []*apiruntime.Scheme
	// Equivalents are the resources that hold the same objects as another.
	Equivalents apiruntime.EquivalentResourceMapper
	// Known returns the changes of the policy that this gateway knows of, which answers
	// have to have seen.
	Known func() authzclient.Revision
	// MaxBodyBytes bounds a request's body. 0: no bound.
	MaxBodyBytes int64
	// Status says how the gates are.
	Status func(context.Context) Status
}

// Handler serves the REST face. It is safe for concurrent use.
type Handler struct {
	cfg  Config
	mux  *runtime.ServeMux
	page *ui.Handler
	// kinds are those of cfg.Schemes.
	kinds []kinds
	// get has the paths that are read; all others are posted to.
	get     map[string]bool
	stopped chan struct{}
	stop    sync.Once
}

var _ http.Handler = (*Handler)(nil)

// services are those that are served.
func services() []protoreflect.ServiceDescriptor {
	return []protoreflect.ServiceDescriptor{
		authnv1.File_trigate_authn_v1_authentication_proto.Services().ByName("AuthenticationService"),
		authzv1.File_trigate_authz_v1_authorization_proto.Services().ByName("AuthorizationService"),
		admissionv1.File_trigate_admission_v1_admission_proto.Services().ByName("AdmissionService"),
	}
}

// New returns the handler. It calls nobody.
func New(cfg Config) (*Handler, error) {
	page, err := ui.New()
	if err != nil {
		return nil, err
	}
	h := &Handler{cfg: cfg, page: page, stopped: make(chan struct{}), get: map[string]bool{StatusPath: true, OpenAPIPath: true}}
	for _, method := range methods() {
		if method.IsStreamingServer() || method.Name() == "ListPublicKeys" {
			h.get[pathOf(method)] = true
		}
	}
	for _, scheme := range cfg.Schemes {
		h.kinds = append(h.kinds, newKinds(scheme))
	}
	h.mux = runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, jsonCodec),
		runtime.WithMarshalerOption(mediaJSON, jsonCodec),
		runtime.WithMarshalerOption(mediaYAML, yamlCodec),
		runtime.WithMiddlewares(h.prepare),
		runtime.WithForwardResponseRewriter(withDefaulted),
		runtime.WithErrorHandler(h.writeError),
		runtime.WithRoutingErrorHandler(h.writeRoutingError),
		runtime.WithStreamErrorHandler(h.streamError),
		// No header of a request or of a gate's answer means anything on the other side.
		runtime.WithIncomingHeaderMatcher(noHeader),
		runtime.WithOutgoingHeaderMatcher(noHeader),
		runtime.WithOutgoingTrailerMatcher(noHeader),
		// The method that was authorized is the one that counts.
		runtime.WithDisableHTTPMethodOverride(),
		runtime.WithDisablePathLengthFallback(),
	)
	ctx := context.Background() // The clients' handlers do nothing with it.
	for _, register := range []func() error{
		func() error {
			return authnv1.RegisterAuthenticationServiceHandlerClient(ctx, h.mux, authnv1.NewAuthenticationServiceClient(cfg.Authn))
		},
		func() error {
			return authzv1.RegisterAuthorizationServiceHandlerClient(ctx, h.mux, authzv1.NewAuthorizationServiceClient(cfg.Authz))
		},
		func() error {
			return admissionv1.RegisterAdmissionServiceHandlerClient(ctx, h.mux, admissionv1.NewAdmissionServiceClient(cfg.Admission))
		},
		func() error { return h.mux.HandlePath(http.MethodGet, StatusPath, h.serveStatus) },
		func() error { return h.mux.HandlePath(http.MethodGet, OpenAPIPath, serveOpenAPI) },
	} {
		if err := register(); err != nil {
			return nil, fmt.Errorf("registering the REST handlers: %w", err)
		}
	}
	return h, nil
}

func noHeader(string) (string, bool) { return "", false }

// Stop ends the streams, which would hold the server up when it stops. Further ones
// end at once.
func (h *Handler) Stop() { h.stop.Do(func() { close(h.stopped) }) }

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if h.page.Serves(req.URL.Path) {
		h.servePage(w, req)
		return
	}
	// grpc-gateway makes metadata of some headers whatever it is told.
	clean := req.WithContext(req.Context())
	clean.Header = http.Header{}
	for _, header := range []string{"Accept", "Content-Type"} {
		if values, ok := req.Header[header]; ok {
			clean.Header[header] = values
		}
	}
	h.mux.ServeHTTP(&retryWriter{ResponseWriter: w}, clean)
}

// Paths returns the paths that are served, sorted, but for those of the page, which are
// ui.Paths.
func Paths() []string {
	paths := []string{StatusPath, OpenAPIPath}
	for _, method := range methods() {
		if !method.IsStreamingClient() {
			paths = append(paths, pathOf(method))
		}
	}
	slices.Sort(paths)
	return paths
}

// IsStream reports whether requests to a path are answered for as long as the client
// listens.
func IsStream(path string) bool {
	return strings.HasPrefix(path, Prefix) && slices.ContainsFunc(methods(), func(method protoreflect.MethodDescriptor) bool {
		return method.IsStreamingServer() && !method.IsStreamingClient() && path == pathOf(method)
	})
}

func methods() []protoreflect.MethodDescriptor {
	var all []protoreflect.MethodDescriptor
	for _, service := range services() {
		for i := range service.Methods().Len() {
			all = append(all, service.Methods().Get(i))
		}
	}
	return all
}

// pathOf returns the path of a method, which its binding has to have:
// /gates/authz/v1/who-can for WhoCan of trigate.authz.v1.
func pathOf(method protoreflect.MethodDescriptor) string {
	var name strings.Builder
	for i, r := range string(method.Name()) {
		if i > 0 && r >= 'A' && r <= 'Z' {
			name.WriteByte('-')
		}
		name.WriteString(strings.ToLower(string(r)))
	}
	gate := strings.TrimPrefix(string(method.ParentFile().Package()), "trigate.")
	return Prefix + strings.ReplaceAll(gate, ".", "/") + "/" + name.String()
}
