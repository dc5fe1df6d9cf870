// Package apitest is a Kubernetes API for the informers of tests: it lists and
// watches the objects that it is given, over TLS, as a real one does. It knows
// nothing of selectors, pages or who asks. Production code does not import it.
package apitest

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	kubernetesscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/trigate/trigate/services/internal/servetest"
)

// Server is a Kubernetes API. It is safe for concurrent use.
type Server struct {
	address string
	ca      *servetest.CA

	// mu guards what follows.
	mu        sync.Mutex
	available bool
	stopped   bool
	objects   map[schema.GroupVersionResource]map[string]object
	log       []event
	forgotten int           // how many events of the log are not to be had
	changed   chan struct{} // closed at each change
}

type object interface {
	runtime.Object
	metav1.Object
}

// event is a change. Its place in the log, from 1, is its resource version.
type event struct {
	resource schema.GroupVersionResource
	what     watch.EventType
	object   object
}

// scheme has the kinds that the services read.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(kubernetesscheme.AddToScheme(s))
	utilruntime.Must(apiextensionsv1.AddToScheme(s))
	return s
}()

// New returns a server with these objects, which runs until the test ends.
func New(t testing.TB, objects ...runtime.Object) *Server {
	t.Helper()
	s := &Server{
		ca:        servetest.NewCA(t, "api"),
		available: true,
		objects:   map[schema.GroupVersionResource]map[string]object{},
		changed:   make(chan struct{}),
	}
	s.Apply(t, objects...)
	cert := s.ca.Issue(t, servetest.Subject{CommonName: "api"})
	pair, err := tls.X509KeyPair(cert.CertPEM, cert.KeyPEM)
	if err != nil {
		t.Fatalf("reading the certificate of the API: %v", err)
	}
	listener := servetest.Listen(t)
	s.address = listener.Addr().String()
	s.run(t, listener, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
	return s
}

func (s *Server) run(t testing.TB, listener net.Listener, tlsConfig *tls.Config) {
	server := &http.Server{Handler: s, TLSConfig: tlsConfig, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() { // The cleanup waits for it.
		defer close(done)
		if err := server.ServeTLS(listener, "", ""); err != http.ErrServerClosed { //nolint:errorlint // as documented
			t.Errorf("serving the API: %v", err)
		}
	}()
	t.Cleanup(func() {
		s.update(func() { s.stopped = true })
		if err := server.Close(); err != nil {
			t.Errorf("closing the API: %v", err)
		}
		<-done
	})
}

// SetAvailable says whether the server answers. While it does not, it drops
// connections, and ends its watches.
func (s *Server) SetAvailable(available bool) {
	s.update(func() { s.available = available })
}

// Kubeconfig returns a kubeconfig file for the server.
func (s *Server) Kubeconfig(t testing.TB) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["api"] = &clientcmdapi.Cluster{Server: "https://" + s.address, CertificateAuthority: s.ca.File}
	config.Contexts["api"] = &clientcmdapi.Context{Cluster: "api"}
	config.CurrentContext = "api"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatalf("writing %s: %v", path, err)
	}
	return path
}

// Apply creates objects, or replaces those of the same name.
func (s *Server) Apply(t testing.TB, objects ...runtime.Object) {
	t.Helper()
	for _, each := range objects {
		resource, o := identify(t, each)
		s.update(func() {
			what := watch.Modified
			if s.objects[resource][keyOf(o)] == nil {
				what = watch.Added
			}
			s.append(event{resource, what, o})
		})
	}
}

// Delete deletes objects.
func (s *Server) Delete(t testing.TB, objects ...runtime.Object) {
	t.Helper()
	for _, each := range objects {
		resource, o := identify(t, each)
		s.update(func() { s.append(event{resource, watch.Deleted, o}) })
	}
}

// Bookmark tells the watches of an object's resource that nothing has happened
// up to now, which takes a resource version.
func (s *Server) Bookmark(t testing.TB, example runtime.Object) {
	t.Helper()
	resource, o := identify(t, example)
	s.update(func() {
		o.SetResourceVersion(strconv.Itoa(len(s.log) + 1))
		s.log = append(s.log, event{resource, watch.Bookmark, o})
	})
}

// Forget forgets all changes, as a compaction does: a watch from an earlier
// resource version ends, and its client has to read everything again.
func (s *Server) Forget() {
	s.update(func() { s.forgotten = len(s.log) })
}

// identify returns an object's resource, and a copy of it with its type.
func identify(t testing.TB, obj runtime.Object) (schema.GroupVersionResource, object) {
	t.Helper()
	kinds, _, err := scheme.ObjectKinds(obj)
	if err != nil {
		t.Fatalf("the kind of %T: %v", obj, err)
	}
	copied, ok := obj.DeepCopyObject().(object)
	if !ok {
		t.Fatalf("%T has no metadata", obj)
	}
	copied.GetObjectKind().SetGroupVersionKind(kinds[0])
	resource, _ := meta.UnsafeGuessKindToResource(kinds[0])
	return resource, copied
}

func keyOf(o object) string { return o.GetNamespace() + "/" + o.GetName() }

// update changes the server's state and tells the watches.
func (s *Server) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.changed)
	s.changed = make(chan struct{})
}

// append is called with the lock held.
func (s *Server) append(e event) {
	e.object.SetResourceVersion(strconv.Itoa(len(s.log) + 1))
	s.log = append(s.log, e)
	byKey := s.objects[e.resource]
	if byKey == nil {
		byKey = map[string]object{}
		s.objects[e.resource] = byKey
	}
	if e.what == watch.Deleted {
		delete(byKey, keyOf(e.object))
		return
	}
	byKey[keyOf(e.object)] = e.object
}

// ServeHTTP answers lists, watches, and the question whether it lives.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.isAvailable() {
		panic(http.ErrAbortHandler)
	}
	if strings.HasPrefix(r.URL.Path, "/livez") {
		_, _ = w.Write([]byte("ok"))
		return
	}
	resource, err := resourceOf(r.URL.Path)
	if err != nil || r.Method != http.MethodGet {
		http.Error(w, fmt.Sprintf("%s %s: %v", r.Method, r.URL.Path, err), http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if query := r.URL.Query(); query.Get("watch") != "" && query.Get("watch") != "0" {
		s.serveWatch(w, r, resource)
		return
	}
	s.serveList(w, resource)
}

func (s *Server) isAvailable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.available
}

// resourceOf reads /api/v1/RESOURCE and /apis/GROUP/VERSION/RESOURCE.
func resourceOf(path string) (schema.GroupVersionResource, error) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) == 3 && parts[0] == "api":
		return schema.GroupVersionResource{Version: parts[1], Resource: parts[2]}, nil
	case len(parts) == 4 && parts[0] == "apis":
		return schema.GroupVersionResource{Group: parts[1], Version: parts[2], Resource: parts[3]}, nil
	}
	return schema.GroupVersionResource{}, fmt.Errorf("no list of a resource across namespaces")
}

// list is any kind's list, as JSON has it.
type list struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []object `json:"items"`
}

func (s *Server) serveList(w http.ResponseWriter, resource schema.GroupVersionResource) {
	items, revision := s.snapshot(resource)
	out := list{
		TypeMeta: metav1.TypeMeta{APIVersion: resource.GroupVersion().String(), Kind: kindOf(resource) + "List"},
		ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(revision)},
		Items:    items,
	}
	_ = json.NewEncoder(w).Encode(out) // the client may be gone
}

func (s *Server) snapshot(resource schema.GroupVersionResource) ([]object, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []object{}
	for _, key := range slices.Sorted(maps.Keys(s.objects[resource])) {
		items = append(items, s.objects[resource][key])
	}
	return items, len(s.log)
}

// kindOf returns the kind of a resource: the one that resource guesses back to.
func kindOf(resource schema.GroupVersionResource) string {
	for kind := range scheme.KnownTypes(resource.GroupVersion()) {
		if guess, _ := meta.UnsafeGuessKindToResource(resource.GroupVersion().WithKind(kind)); guess == resource {
			return kind
		}
	}
	return "Unknown"
}

// serveWatch streams what changed since a revision, or first all that there is
// and a bookmark, if the client asks for that.
func (s *Server) serveWatch(w http.ResponseWriter, r *http.Request, resource schema.GroupVersionResource) {
	encoder := json.NewEncoder(w)
	send := func(what watch.EventType, o any) bool {
		return encoder.Encode(map[string]any{"type": what, "object": o}) == nil
	}
	revision, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion")) // absent is 0
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		var items []object
		items, revision = s.snapshot(resource)
		for _, item := range items {
			if !send(watch.Added, item) {
				return
			}
		}
		send(watch.Bookmark, metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: resource.GroupVersion().String(), Kind: kindOf(resource)},
			ObjectMeta: metav1.ObjectMeta{
				ResourceVersion: strconv.Itoa(revision),
				Annotations:     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
			},
		})
	}
	for {
		events, changed, err := s.since(revision)
		if err != nil {
			send(watch.Error, err.Status())
			return
		}
		if changed == nil {
			return
		}
		for _, e := range events {
			revision++
			if e.resource == resource && !send(e.what, e.object) {
				return
			}
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// since returns what changed after a revision and a channel that is closed at the
// next change, or none when watches end, or an error if it has been forgotten.
func (s *Server) since(revision int) ([]event, <-chan struct{}, *apierrors.StatusError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopped || !s.available || revision > len(s.log):
		return nil, nil, nil
	case revision < s.forgotten:
		return nil, nil, apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", revision, s.forgotten))
	}
	return slices.Clone(s.log[revision:]), s.changed, nil
}
