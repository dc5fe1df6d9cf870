package app

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// connectionToken is the token of the connections to a server.
const connectionToken = "the-connection's"

// server is a control plane as far as the commands see it: discovery, who the caller
// is, some objects, and the gates' REST, which the test answers.
type server struct {
	*httptest.Server
	kubeconfig string

	mu sync.Mutex
	// gates answer what is posted, by path.
	gates map[string]func(body []byte) (proto.Message, error)
	// objects are served on GET, by path.
	objects map[string]any
}

// newServer starts a server that ends with the test.
func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{gates: map[string]func([]byte) (proto.Message, error){}, objects: served()}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.crt")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(ca, certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	s.kubeconfig = filepath.Join(dir, "kubeconfig")
	content := `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "tour"}}],
"clusters": [{"name": "c", "cluster": {"server": "` + s.URL + `", "certificate-authority": "` + ca + `"}}],
"users": [{"name": "u", "user": {"token": "` + connectionToken + `"}}]}`
	if err := os.WriteFile(s.kubeconfig, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECACHEDIR", filepath.Join(dir, "cache"))
	return s
}

// answer has the gates answer a path. The question is read into a message first.
func answer[Q any, P interface {
	*Q
	proto.Message
}](t *testing.T, s *server, path string, give func(P) (proto.Message, error)) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gates[path] = func(body []byte) (proto.Message, error) {
		question := P(new(Q))
		if err := protojson.Unmarshal(body, question); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return give(question)
	}
}

// serve implements http.HandlerFunc.
func (s *server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Header.Get("Authorization") != "Bearer "+connectionToken {
		respond(w, http.StatusUnauthorized, apierrors.NewUnauthorized("not "+connectionToken).Status())
		return
	}
	give := s.gates[r.URL.Path]
	body, err := io.ReadAll(r.Body)
	switch object, ok := s.objects[r.URL.Path]; {
	case err != nil:
		respond(w, http.StatusBadRequest, apierrors.NewBadRequest(err.Error()).Status())
	case r.URL.Path == "/apis/authentication.k8s.io/v1/selfsubjectreviews":
		respond(w, http.StatusCreated, authenticationv1.SelfSubjectReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "SelfSubjectReview"},
			Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{
				Username: "caller", Groups: []string{"callers"}, Extra: map[string]authenticationv1.ExtraValue{"example.com/k": {"v"}},
			}},
		})
	case ok && r.Method == http.MethodGet:
		respond(w, http.StatusOK, object)
	case give == nil:
		respond(w, http.StatusNotFound, apierrors.NewNotFound(schema.GroupResource{}, r.URL.Path).Status())
	default:
		message, err := give(body)
		if status := apierrors.APIStatus(nil); err != nil {
			status, ok = err.(apierrors.APIStatus)
			if !ok {
				respond(w, http.StatusInternalServerError, apierrors.NewInternalError(err).Status())
				return
			}
			if details := status.Status().Details; details != nil && details.RetryAfterSeconds > 0 {
				w.Header().Set("Retry-After", "0")
			}
			respond(w, int(status.Status().Code), status.Status())
			return
		}
		if own, ok := message.(json.Marshaler); ok {
			respond(w, http.StatusOK, own)
			return
		}
		content, err := protojson.Marshal(message)
		if err != nil {
			respond(w, http.StatusInternalServerError, apierrors.NewInternalError(err).Status())
			return
		}
		respond(w, http.StatusOK, json.RawMessage(content))
	}
}

// respond writes an answer. What a client that has gone away misses is its own loss.
func respond(w http.ResponseWriter, code int, body any) {
	if status, ok := body.(metav1.Status); ok {
		status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		body = status
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

// served is what a small API server says of itself, by path.
func served() map[string]any {
	list := func(version string, resources ...metav1.APIResource) metav1.APIResourceList {
		return metav1.APIResourceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: version, APIResources: resources}
	}
	verbs := metav1.Verbs{"create", "delete", "get", "list", "update"}
	version := metav1.GroupVersionForDiscovery{GroupVersion: "apps/v1", Version: "v1"}
	deployments := metav1.APIResource{Name: "deployments", SingularName: "deployment", Namespaced: true, Kind: "Deployment", ShortNames: []string{"deploy"}, Verbs: verbs}
	return map[string]any{
		"/api": metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}},
		"/apis": metav1.APIGroupList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroupList"}, Groups: []metav1.APIGroup{
			{Name: "apps", Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version},
		}},
		"/api/v1": list("v1",
			metav1.APIResource{Name: "pods", SingularName: "pod", Namespaced: true, Kind: "Pod", ShortNames: []string{"po"}, Verbs: verbs},
			metav1.APIResource{Name: "pods/log", Namespaced: true, Kind: "Pod", Verbs: verbs},
			metav1.APIResource{Name: "secrets", SingularName: "secret", Namespaced: true, Kind: "Secret", Verbs: verbs},
			metav1.APIResource{Name: "namespaces", SingularName: "namespace", Kind: "Namespace", ShortNames: []string{"ns"}, Verbs: verbs},
			metav1.APIResource{Name: "nodes", SingularName: "node", Kind: "Node", ShortNames: []string{"no"}, Verbs: verbs},
		),
		"/apis/apps/v1": list("apps/v1", deployments, metav1.APIResource{Name: "deployments/scale", Namespaced: true, Kind: "Scale", Group: "autoscaling", Version: "v1", Verbs: verbs}),
	}
}

// ran is what a command did.
type ran struct {
	out, err string
	code     int
}

// run runs a command against the server.
func (s *server) run(t *testing.T, stdin string, args ...string) ran {
	t.Helper()
	var out, errOut bytes.Buffer
	code := Main(append(args, "--kubeconfig="+s.kubeconfig), strings.NewReader(stdin), &out, &errOut)
	return ran{out: out.String(), err: errOut.String(), code: code}
}

// want compares what a command did: the exit code, and what it has printed.
func (r ran) want(t *testing.T, code int, out, errOut string) {
	t.Helper()
	if r.code != code || r.out != out || r.err != errOut {
		t.Errorf("exit code %d\nstdout:\n%s\nstderr:\n%s\nwant exit code %d\nstdout:\n%s\nstderr:\n%s", r.code, r.out, r.err, code, out, errOut)
	}
}

// wantError wants exit code 2, nothing on stdout, and each part on stderr.
func (r ran) wantError(t *testing.T, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if r.code != exitError || r.out != "" || !strings.Contains(r.err, part) {
			t.Errorf("exit code %d, stdout %q, stderr %q, want exit code 2, no stdout, and %q", r.code, r.out, r.err, part)
		}
	}
}
