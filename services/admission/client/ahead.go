package client

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
)

// Ahead is what Admit has learned about the validation of the same request. Most new
// objects are stored as they were admitted, but for what an API server sets in them; if
// only plugins that do not read that are interested, a second call would say nothing new.
// It serves one request, whose calls come one after the other.
type Ahead struct {
	client  *Client
	outcome *admissionv1.Outcome
	// admitted is the request that the outcome is of, and object its object then.
	admitted admission.Attributes
	object   runtime.Object
}

type aheadKey struct{}

// WithAhead has Admit ask for validation as well, for ahead, which forgets what it knew.
// The caller has made sure that each InterestRule of Validate which matches the request is
// Settled.
func WithAhead(ctx context.Context, ahead *Ahead) context.Context {
	ahead.Forget()
	return context.WithValue(ctx, aheadKey{}, ahead)
}

func aheadFrom(ctx context.Context) *Ahead {
	ahead, _ := ctx.Value(aheadKey{}).(*Ahead)
	return ahead
}

// Forget forgets what an Admit has learned. Upstream may admit a request more than once,
// and what was learned of an attempt before says nothing of the next.
func (h *Ahead) Forget() { *h = Ahead{} }

func (h *Ahead) remember(c *Client, a admission.Attributes, outcome *admissionv1.Outcome) {
	*h = Ahead{client: c, outcome: outcome, admitted: a, object: a.GetObject().DeepCopyObject()}
}

// Conclude does for a request what Validate would, without a call, and returns true. It
// returns false, and has done nothing, if Validate has to be called: Admit has learned
// nothing of the request, its object has changed since by more than what an API server
// sets in a new object, or Conclude was called before.
func (h *Ahead) Conclude(ctx context.Context, a admission.Attributes) bool {
	if h.outcome == nil || !sameRequest(h.admitted, a) || !sameObject(h.object, a.GetObject()) {
		return false
	}
	client, outcome := h.client, h.outcome
	h.Forget()
	return client.conclude(ctx, a, outcome, validatingWebhooks) == nil
}

func sameRequest(a, b admission.Attributes) bool {
	return a.GetOperation() == admission.Create && b.GetOperation() == admission.Create &&
		a.GetResource() == b.GetResource() && a.GetSubresource() == b.GetSubresource() && a.GetKind() == b.GetKind() &&
		a.GetNamespace() == b.GetNamespace() && a.IsDryRun() == b.IsDryRun()
}

// sameObject returns whether stored is admitted but for what an API server sets in a new
// object: rest.BeforeCreate, and the strategies of objects with a status.
func sameObject(admitted, stored runtime.Object) bool {
	a, aOK := withoutServerFields(admitted)
	b, bOK := withoutServerFields(stored)
	if !aOK || !bOK || a.value.Type() != b.value.Type() || a.name != "" && a.name != b.name {
		return false
	}
	return reflect.DeepEqual(a.value.Interface(), b.value.Interface())
}

// stripped is a built-in object without what an API server sets in a new one.
type stripped struct {
	value reflect.Value
	name  string
}

// withoutServerFields strips a copy. The copy is a shallow one: what is stripped is in the
// outermost structs.
func withoutServerFields(object runtime.Object) (stripped, bool) {
	pointer := reflect.ValueOf(object)
	if pointer.Kind() != reflect.Pointer || pointer.IsNil() || pointer.Elem().Kind() != reflect.Struct {
		return stripped{}, false
	}
	shallow := reflect.New(pointer.Type().Elem())
	shallow.Elem().Set(pointer.Elem())
	accessor, err := meta.Accessor(shallow.Interface())
	if err != nil {
		return stripped{}, false
	}
	status := shallow.Elem().FieldByName("Status")
	if !status.IsValid() {
		return stripped{}, false // it is not known where the server writes
	}
	status.SetZero()
	s := stripped{value: shallow.Elem(), name: accessor.GetName()}
	accessor.SetName("")
	accessor.SetUID("")
	accessor.SetCreationTimestamp(metav1.Time{})
	accessor.SetGeneration(0)
	accessor.SetResourceVersion("")
	accessor.SetSelfLink("")
	accessor.SetManagedFields(nil)
	return s, true
}
