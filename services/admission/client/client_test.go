package client_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apiextensionsinternal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/admission/client"
	"github.com/trigate/trigate/services/admission/internal/undecided"
	"github.com/trigate/trigate/services/admission/server"
	"github.com/trigate/trigate/services/internal/dial"
	"github.com/trigate/trigate/services/internal/rpcerr"
	"github.com/trigate/trigate/services/internal/serve"
	"github.com/trigate/trigate/services/internal/servetest"
)

var (
	configMaps    = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	configMapKind = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	widgets       = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	widgetKind    = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	somebody      = &user.DefaultInfo{Name: "somebody", UID: "1", Groups: []string{"g"}, Extra: map[string][]string{"k": {"v", "w"}}}
)

// judge is an admission plugin of one function for both phases.
type judge func(ctx context.Context, phase string, a admission.Attributes, o admission.ObjectInterfaces) error

func (j judge) Handles(admission.Operation) bool { return true }

func (j judge) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return j(ctx, "admit", a, o)
}

func (j judge) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return j(ctx, "validate", a, o)
}

// start serves plugins over mutual TLS and returns a client for them.
func start(t *testing.T, cfg server.Config) (*servetest.Running, *client.Client) {
	t.Helper()
	running := servetest.Start(t, servetest.NewPKI(t), serve.Config{
		Name:    server.Name,
		Policy:  server.Policy(),
		Budgets: client.Budgets(),
	}, func(s *serve.Server) {
		admissionv1.RegisterAdmissionServiceServer(s, server.New(cfg))
		s.Health().Set("plugins", true, "")
	})
	return running, client.New(running.DialReady(t, "gateway"))
}

func create(object runtime.Object, kind schema.GroupVersionKind, resource schema.GroupVersionResource) admission.Attributes {
	return admission.NewAttributesRecord(object, nil, kind, "ns", "n", resource, "", admission.Create, &metav1.CreateOptions{}, false, somebody)
}

// TestChangesReachTheHandlersObject has what plugins change be found behind the
// pointer that the handler has, for types of each of the three servers.
func TestChangesReachTheHandlersObject(t *testing.T) {
	_, c := start(t, server.Config{Plugins: judge(func(_ context.Context, phase string, a admission.Attributes, _ admission.ObjectInterfaces) error {
		accessor, ok := a.GetObject().(metav1.Object)
		if !ok || phase != "admit" {
			return errors.New("no object to change")
		}
		accessor.SetLabels(map[string]string{"changed": "é"})
		return nil
	})})
	for name, tc := range map[string]struct {
		object   runtime.Object
		kind     schema.GroupVersionKind
		resource schema.GroupVersionResource
	}{
		"kube": {&core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Data: map[string]string{"a": "b"}}, configMapKind, configMaps},
		"apiextensions": {
			&apiextensionsinternal.CustomResourceDefinition{
				ObjectMeta: metav1.ObjectMeta{Name: "n"},
				Spec:       apiextensionsinternal.CustomResourceDefinitionSpec{PreserveUnknownFields: new(bool)},
			},
			schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"},
			schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
		},
		"aggregator": {
			&apiregistration.APIService{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: apiregistration.APIServiceSpec{Group: "g"}},
			schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"},
			schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
		},
		"custom": {&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "n"},
			"spec": map[string]any{"n": int64(9007199254740993), "f": float64(1)},
		}}, widgetKind, widgets},
	} {
		t.Run(name, func(t *testing.T) {
			want := tc.object.DeepCopyObject()
			want.(metav1.Object).SetLabels(map[string]string{"changed": "é"})
			if err := c.Admit(t.Context(), create(tc.object, tc.kind, tc.resource), nil); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, tc.object); diff != "" {
				t.Errorf("the handler's object (-want +got):\n%s", diff)
			}
		})
	}
}

// TestUnchangedObjectsStayAway has an object that no plugin changes not be
// touched, not even replaced by its like.
func TestUnchangedObjectsStayAway(t *testing.T) {
	_, c := start(t, server.Config{Plugins: judge(func(_ context.Context, _ string, a admission.Attributes, _ admission.ObjectInterfaces) error {
		return nil
	})})
	data := map[string]string{"a": "b"}
	object := &core.ConfigMap{Data: data}
	if err := c.Admit(t.Context(), create(object, configMapKind, configMaps), nil); err != nil {
		t.Fatal(err)
	}
	data["new"] = "c"
	if object.Data["new"] != "c" {
		t.Error("the object's content was replaced")
	}
}

// TestPluginsSeeTheRequest has a plugin see the request as in kube-apiserver.
func TestPluginsSeeTheRequest(t *testing.T) {
	type seen struct {
		phase    string
		a        admission.Attributes
		kinds    []schema.GroupVersionKind
		deadline bool
	}
	var mu sync.Mutex
	var got seen
	_, c := start(t, server.Config{Plugins: judge(func(ctx context.Context, phase string, a admission.Attributes, o admission.ObjectInterfaces) error {
		mu.Lock()
		defer mu.Unlock()
		_, deadline := ctx.Deadline()
		kinds, _, err := o.GetObjectTyper().ObjectKinds(a.GetOldObject())
		got = seen{phase, a, kinds, deadline}
		return err
	})})
	old := &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "old"}}
	want := admission.NewAttributesRecord(nil, old, configMapKind, "ns", "", configMaps, "", admission.Delete, &metav1.DeleteOptions{}, true, somebody)
	if err := c.Validate(t.Context(), want, admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme)); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if got.phase != "validate" || !got.deadline {
		t.Errorf("phase %s with a deadline: %t, want validate and true", got.phase, got.deadline)
	}
	if wantKinds := []schema.GroupVersionKind{{Version: runtime.APIVersionInternal, Kind: "ConfigMap"}}; !reflect.DeepEqual(wantKinds, got.kinds) {
		t.Errorf("the typer says %v, want %v", got.kinds, wantKinds)
	}
	if got.a.GetObject() != nil || !reflect.DeepEqual(got.a.GetOldObject(), old) || !got.a.IsDryRun() || got.a.GetName() != "" {
		t.Errorf("the plugin saw %#v", got.a)
	}
	u := got.a.GetUserInfo()
	if u.GetName() != "somebody" || u.GetUID() != "1" || !slices.Equal(u.GetGroups(), []string{"g"}) || !slices.Equal(u.GetExtra()["k"], []string{"v", "w"}) {
		t.Errorf("the plugin saw the user %#v", u)
	}
}

// TestWebhooksLatencyIsTheRequests has the time that the plugins' webhooks took
// be counted where the API server's own would have counted it.
func TestWebhooksLatencyIsTheRequests(t *testing.T) {
	_, c := start(t, server.Config{Plugins: judge(func(ctx context.Context, phase string, _ admission.Attributes, _ admission.ObjectInterfaces) error {
		trackers, ok := request.LatencyTrackersFrom(ctx)
		switch {
		case !ok:
			return errors.New("nothing keeps track")
		case phase == "admit":
			trackers.MutatingWebhookTracker.TrackDuration(time.Second)
			trackers.MutatingWebhookTracker.TrackDuration(time.Second)
		default:
			trackers.ValidatingWebhookTracker.TrackDuration(3 * time.Second)
			trackers.ValidatingWebhookTracker.TrackDuration(time.Second)
		}
		return nil
	})})
	ctx := request.WithLatencyTrackers(t.Context())
	for range 2 {
		if err := c.Admit(ctx, create(&core.ConfigMap{}, configMapKind, configMaps), nil); err != nil {
			t.Fatal(err)
		}
		if err := c.Validate(ctx, create(&core.ConfigMap{}, configMapKind, configMaps), nil); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]string{"apiserver.latency.k8s.io/mutating-webhook": "4s", "apiserver.latency.k8s.io/validating-webhook": "3s"}
	if diff := cmp.Diff(want, request.AuditAnnotationsFromLatencyTrackers(ctx)); diff != "" {
		t.Errorf("the annotations (-want +got):\n%s", diff)
	}
}

// recorder remembers warnings.
type recorder []string

func (r *recorder) AddWarning(agent, text string) { *r = append(*r, agent+": "+text) }

// TestWhatPluginsSay has warnings, audit annotations and rejections end where
// they would without a service between.
func TestWhatPluginsSay(t *testing.T) {
	denial := apierrors.NewForbidden(configMaps.GroupResource(), "n", errors.New("why not"))
	denial.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: "T", Message: "m", Field: "f"}}
	for name, verdict := range map[string]error{"allowed": nil, "denied": denial, "failed": errors.New("broken")} {
		t.Run(name, func(t *testing.T) {
			says := judge(func(ctx context.Context, _ string, a admission.Attributes, _ admission.ObjectInterfaces) error {
				warning.AddWarning(ctx, "", "second")
				warning.AddWarning(ctx, "me", "first")
				warning.AddWarning(ctx, "", "second")
				audit.AddAuditAnnotation(ctx, "direct.k8s.io/d", "1")
				for key, level := range map[string]auditinternal.Level{
					"meta.k8s.io/m": auditinternal.LevelMetadata, "request.k8s.io/r": auditinternal.LevelRequest, "none.k8s.io/n": auditinternal.LevelNone,
				} {
					if err := a.AddAnnotationWithLevel(key, key, level); (err != nil) != (level == auditinternal.LevelNone) {
						return err
					}
				}
				if err := a.AddAnnotation("bad key", "v"); err == nil {
					return errors.New("a bad key was taken")
				}
				if err := a.AddAnnotation("meta.k8s.io/m", "other"); err == nil {
					return errors.New("an annotation was overwritten")
				}
				return verdict
			})
			_, c := start(t, server.Config{Plugins: says})
			for phase, call := range map[string]func(admission.Interface) func(context.Context, admission.Attributes, admission.ObjectInterfaces) error{
				"admit": func(i admission.Interface) func(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
					return i.(admission.MutationInterface).Admit
				},
				"validate": func(i admission.Interface) func(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
					return i.(admission.ValidationInterface).Validate
				},
			} {
				for _, level := range []auditinternal.Level{auditinternal.LevelMetadata, auditinternal.LevelRequest} {
					t.Run(phase+" at "+string(level), func(t *testing.T) {
						want := observe(t, level, call(admission.WithAudit(says)))
						got := observe(t, level, call(admission.WithAudit(c)))
						if diff := cmp.Diff(want, got); diff != "" {
							t.Errorf("through the service (-in process +service):\n%s", diff)
						}
						if len(got.Warnings) != 3 || len(got.Annotations) < 2 {
							t.Errorf("observed only %v", got)
						}
					})
				}
			}
		})
	}
}

// observation is what a handler's client and its audit log would be told.
type observation struct {
	Warnings    []string
	Annotations map[string]string
	Status      *metav1.Status
}

func observe(t *testing.T, level auditinternal.Level, call func(context.Context, admission.Attributes, admission.ObjectInterfaces) error) observation {
	t.Helper()
	var warnings recorder
	ctx := audit.WithAuditContext(warning.WithWarningRecorder(t.Context(), &warnings))
	if err := audit.AuditContextFrom(ctx).Init(audit.RequestAuditConfig{Level: level}, nil); err != nil {
		t.Fatal(err)
	}
	o := observation{}
	if err := call(ctx, create(&core.ConfigMap{}, configMapKind, configMaps), nil); err != nil {
		o.Status = responsewriters.ErrorToAPIStatus(err)
	}
	o.Warnings, o.Annotations = warnings, audit.AuditContextFrom(ctx).GetEventAnnotations()
	return o
}

// TestReinvocation has a chain be run again within one Admit.
func TestReinvocation(t *testing.T) {
	var mu sync.Mutex
	rounds := 0
	plugins := admission.NewPlugins()
	plugins.Register("again", func(_ io.Reader) (admission.Interface, error) {
		return judge(func(_ context.Context, _ string, a admission.Attributes, _ admission.ObjectInterfaces) error {
			mu.Lock()
			defer mu.Unlock()
			rounds++
			a.GetObject().(*core.ConfigMap).Data = map[string]string{"rounds": string(rune('0' + rounds))}
			if !a.GetReinvocationContext().IsReinvoke() {
				a.GetReinvocationContext().SetShouldReinvoke()
			}
			return nil
		}), nil
	})
	chain, err := plugins.NewFromPlugins([]string{"again"}, noConfig{}, admission.PluginInitializers{}, admission.Decorators{})
	if err != nil {
		t.Fatal(err)
	}
	_, c := start(t, server.Config{Plugins: chain})
	object := &core.ConfigMap{}
	if err := c.Admit(t.Context(), create(object, configMapKind, configMaps), nil); err != nil {
		t.Fatal(err)
	}
	if object.Data["rounds"] != "2" {
		t.Errorf("rounds = %s, want 2", object.Data["rounds"])
	}
}

type noConfig struct{}

func (noConfig) ConfigFor(string) (io.Reader, error) { return nil, nil }

// TestOutages has every reason for which nothing can be decided end as 503 with
// Retry-After, and the handler's object be left alone.
func TestOutages(t *testing.T) {
	changes := judge(func(_ context.Context, _ string, a admission.Attributes, _ admission.ObjectInterfaces) error {
		a.GetObject().(*core.ConfigMap).Data = map[string]string{"changed": "x"}
		return nil
	})
	asking := undecided.NewTracker()
	unreachable := asking.Authorizer(authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionNoOpinion, "", rpcerr.PeerUnreachable("authz", nil)
	}))
	for name, connect := range map[string]func(t *testing.T) *client.Client{
		"nobody listens": func(t *testing.T) *client.Client {
			running, c := start(t, server.Config{Plugins: changes})
			if err := running.Stop(); err != nil {
				t.Fatal(err)
			}
			return c
		},
		"not synced": func(t *testing.T) *client.Client {
			_, c := start(t, server.Config{Plugins: changes, Synced: func() bool { return false }})
			return c
		},
		"a plugin panics": func(t *testing.T) *client.Client {
			_, c := start(t, server.Config{Plugins: judge(func(context.Context, string, admission.Attributes, admission.ObjectInterfaces) error { panic("secret") })})
			return c
		},
		"authz is unreachable": func(t *testing.T) *client.Client {
			_, c := start(t, server.Config{Questions: asking, Plugins: judge(func(_ context.Context, _ string, a admission.Attributes, _ admission.ObjectInterfaces) error {
				// As CEL asks: with the user, and without the context.
				_, _, err := unreachable.Authorize(context.Background(), authorizer.AttributesRecord{User: a.GetUserInfo()})
				return apierrors.NewForbidden(configMaps.GroupResource(), "n", err)
			})})
			return c
		},
		"authz is unreachable and the plugin does not mind": func(t *testing.T) *client.Client {
			_, c := start(t, server.Config{Questions: asking, Plugins: judge(func(ctx context.Context, _ string, a admission.Attributes, _ admission.ObjectInterfaces) error {
				_, _, _ = unreachable.Authorize(ctx, authorizer.AttributesRecord{})
				return changes(ctx, "", a, nil)
			})})
			return c
		},
		"an object of another kind comes back": func(*testing.T) *client.Client {
			return client.New(answer{object: &admissionv1.Object{
				Kind: &admissionv1.GroupVersionKind{Version: "v1", Kind: "Secret"}, Encoding: admissionv1.Encoding_ENCODING_JSON, Data: []byte(`{"kind":"Secret","apiVersion":"v1"}`),
			}})
		},
		"the answer says nothing": func(*testing.T) *client.Client { return client.New(answer{silent: true}) },
		"an internal error": func(*testing.T) *client.Client {
			return client.New(answer{err: status.Error(codes.Internal, "secret")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := connect(t)
			object := &core.ConfigMap{Data: map[string]string{"a": "b"}}
			err := c.Admit(t.Context(), create(object, configMapKind, configMaps), nil)
			if !client.IsCouldNotDecide(err) {
				t.Fatalf("Admit() = %v, want that nothing was decided", err)
			}
			if diff := cmp.Diff(&core.ConfigMap{Data: map[string]string{"a": "b"}}, object); diff != "" {
				t.Errorf("the object changed (-want +got):\n%s", diff)
			}
			w := httptest.NewRecorder()
			responsewriters.ErrorNegotiated(err, legacyscheme.Codecs, schema.GroupVersion{Version: "v1"}, w, httptest.NewRequest(http.MethodPost, "/", nil))
			if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" {
				t.Errorf("the answer is %d with Retry-After %q, want 503 and 1", w.Code, w.Header().Get("Retry-After"))
			}
			want := &metav1.Status{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
				Status:   metav1.StatusFailure, Code: http.StatusServiceUnavailable, Reason: metav1.StatusReasonServiceUnavailable,
				Message: "the admission gate could not decide on the request, please try again", Details: &metav1.StatusDetails{RetryAfterSeconds: 1},
			}
			if diff := cmp.Diff(want, responsewriters.ErrorToAPIStatus(err)); diff != "" {
				t.Errorf("the status (-want +got):\n%s", diff)
			}
		})
	}
}

// answer is a connection on which every call ends the same.
type answer struct {
	err    error
	silent bool
	object *admissionv1.Object
}

func (c answer) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	response, ok := reply.(*admissionv1.AdmitResponse)
	if !ok || c.err != nil {
		return c.err
	}
	if !c.silent {
		response.Outcome = &admissionv1.Outcome{Allowed: true}
	}
	response.Object = c.object
	return nil
}

func (answer) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams")
}

// TestRequestsOwnTimeIsOver has a slow plugin end as a timeout if it was the
// request's own time that was over, as upstream's handlers have it.
func TestRequestsOwnTimeIsOver(t *testing.T) {
	_, c := start(t, server.Config{Plugins: judge(func(ctx context.Context, _ string, _ admission.Attributes, _ admission.ObjectInterfaces) error {
		<-ctx.Done()
		return ctx.Err()
	})})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err := c.Validate(ctx, create(&core.ConfigMap{}, configMapKind, configMaps), nil)
	if !client.IsCouldNotDecide(err) {
		t.Errorf("Validate() = %v, want that nothing was decided", err)
	}
	if code := responsewriters.ErrorToAPIStatus(err).Code; code != http.StatusServiceUnavailable && code != http.StatusGatewayTimeout {
		t.Errorf("the answer is %d, want 503 or 504", code)
	}
}

// TestUnknownTypes has an object of no known type be an error that trying again
// does not mend, and not a panic.
func TestUnknownTypes(t *testing.T) {
	c := client.New(answer{})
	err := c.Admit(t.Context(), create(&unknown{}, configMapKind, configMaps), nil)
	if !apierrors.IsInternalError(err) {
		t.Errorf("Admit() = %v, want an internal error", err)
	}
}

type unknown struct{ metav1.TypeMeta }

func (u *unknown) DeepCopyObject() runtime.Object { return u }

// TestLargeObjects has an update go through whose objects are as large as the
// API server lets them be.
func TestLargeObjects(t *testing.T) {
	_, c := start(t, server.Config{Plugins: judge(func(_ context.Context, _ string, a admission.Attributes, _ admission.ObjectInterfaces) error {
		a.GetObject().(*core.ConfigMap).Labels = map[string]string{"seen": "yes"}
		return nil
	})})
	big := func() *core.ConfigMap {
		return &core.ConfigMap{BinaryData: map[string][]byte{"d": make([]byte, 3<<20)}}
	}
	object := big()
	a := admission.NewAttributesRecord(object, big(), configMapKind, "ns", "n", configMaps, "", admission.Update, &metav1.UpdateOptions{}, false, somebody)
	if err := c.Admit(t.Context(), a, nil); err != nil {
		t.Fatal(err)
	}
	if object.Labels["seen"] != "yes" || len(object.BinaryData["d"]) != 3<<20 {
		t.Errorf("the object came back with %d bytes and labels %v", len(object.BinaryData["d"]), object.Labels)
	}
}

// TestObjectsMayGrow has a plugin make an object larger than any message that the
// service would take: it reaches the handler, whose resource says what is too much.
// It is too large for a second call.
func TestObjectsMayGrow(t *testing.T) {
	const size = serve.DefaultMaxMessageBytes + 1
	_, c := start(t, server.Config{Plugins: judge(func(_ context.Context, _ string, a admission.Attributes, _ admission.ObjectInterfaces) error {
		a.GetObject().(*core.ConfigMap).BinaryData = map[string][]byte{"d": make([]byte, size)}
		return nil
	})})
	object := &core.ConfigMap{}
	if err := c.Admit(t.Context(), create(object, configMapKind, configMaps), nil); err != nil {
		t.Fatal(err)
	}
	if got := len(object.BinaryData["d"]); got != size {
		t.Errorf("the object came back with %d bytes, want %d", got, size)
	}
	if err := c.Validate(t.Context(), create(object, configMapKind, configMaps), nil); !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("Validate() = %v, want a status of 413", err)
	}
}

// TestOutcomesMayBeLarge has a plugin say more than any message that the service would
// take: of a warning the handlers show the beginning, and a refusal is as long as it is.
func TestOutcomesMayBeLarge(t *testing.T) {
	long := strings.Repeat("x", serve.DefaultMaxMessageBytes+1)
	_, c := start(t, server.Config{Plugins: judge(func(ctx context.Context, _ string, a admission.Attributes, _ admission.ObjectInterfaces) error {
		if a.GetObject().(*core.ConfigMap).Name == "refused" {
			return apierrors.NewBadRequest(long)
		}
		warning.AddWarning(ctx, "", long)
		return nil
	})})
	ask := map[string]func(context.Context, admission.Attributes, admission.ObjectInterfaces) error{"Admit": c.Admit, "Validate": c.Validate}
	for name, ask := range ask {
		t.Run(name, func(t *testing.T) {
			var warnings recorder
			ctx := warning.WithWarningRecorder(t.Context(), &warnings)
			if err := ask(ctx, create(&core.ConfigMap{}, configMapKind, configMaps), nil); err != nil {
				t.Error(err)
			}
			if got := len(warnings); got != 1 || warnings[0] != ": "+long {
				t.Errorf("got %d warnings, want the long one", got)
			}
			refused := &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "refused"}}
			err := ask(ctx, create(refused, configMapKind, configMaps), nil)
			if !apierrors.IsBadRequest(err) || err.Error() != long {
				t.Errorf("got an error of %.100v, want the plugin's", err)
			}
		})
	}
}

// TestAuditIDReachesPlugins has the request's audit ID arrive, which webhooks
// are told.
func TestAuditIDReachesPlugins(t *testing.T) {
	var got types.UID
	_, c := start(t, server.Config{Plugins: judge(func(ctx context.Context, _ string, _ admission.Attributes, _ admission.ObjectInterfaces) error {
		got, _ = audit.AuditIDFrom(ctx)
		return nil
	})})
	ctx := audit.WithAuditContext(t.Context())
	audit.WithAuditID(ctx, "the-id")
	if err := c.Validate(ctx, create(&core.ConfigMap{}, configMapKind, configMaps), nil); err != nil {
		t.Fatal(err)
	}
	if got != "the-id" {
		t.Errorf("the plugin saw the audit ID %q, want the-id", got)
	}
}

// TestConcurrentCalls has one client be used by many handlers.
func TestConcurrentCalls(t *testing.T) {
	_, c := start(t, server.Config{Plugins: judge(func(_ context.Context, _ string, a admission.Attributes, _ admission.ObjectInterfaces) error {
		object := a.GetObject().(*core.ConfigMap)
		object.Data = map[string]string{"name": object.Name}
		return nil
	})})
	var group sync.WaitGroup
	for i := range 64 {
		group.Go(func() {
			object := &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: string(rune('A' + i))}}
			if err := c.Admit(t.Context(), create(object, configMapKind, configMaps), nil); err != nil {
				t.Error(err)
			}
			if object.Data["name"] != object.Name {
				t.Errorf("%s got the data of %s", object.Name, object.Data["name"])
			}
		})
	}
	group.Wait()
}

func TestPeopleMayNotCallUnasked(t *testing.T) {
	running, _ := start(t, server.Config{Plugins: admission.NewChainHandler()})
	for name, tc := range map[string]struct {
		cert servetest.Cert
		want bool
	}{
		"the gateway":        {running.PKI.Process(t, "gateway"), true},
		"another service":    {running.PKI.Process(t, "authn"), false},
		"an administrator":   {running.PKI.User(t, "admin", "system:masters"), true},
		"an ordinary person": {running.PKI.User(t, "somebody"), false},
		"nobody":             {servetest.Cert{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			conn := running.Dial(t, tc.cert, func(*dial.Config) {})
			if err := conn.WaitReady(t.Context()); err != nil {
				t.Fatal(err)
			}
			err := client.New(conn).Validate(t.Context(), create(&core.ConfigMap{}, configMapKind, configMaps), nil)
			if (err == nil) != tc.want {
				t.Errorf("Validate() = %v, want it answered: %t", err, tc.want)
			}
		})
	}
}
