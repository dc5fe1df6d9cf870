package convert_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/admission/internal/convert"
)

// TestRejectionsRoundTrip has the errors of plugins be answered as they would
// have been without a service between.
func TestRejectionsRoundTrip(t *testing.T) {
	remaining := int64(7)
	forbidden := apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, "d", errors.New("exceeded quota"))
	terminating := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", errors.New("is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: "NamespaceTerminating", Message: "namespace ns is being terminated", Field: "metadata.namespace"}}
	linked := &apierrors.StatusError{}
	linked.ErrStatus.SetSelfLink("s")
	for name, err := range map[string]error{
		"a self link":       linked,
		"a status":          forbidden,
		"causes":            terminating,
		"field errors":      apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", field.ErrorList{field.Required(field.NewPath("spec"), "why"), field.Invalid(field.NewPath("a").Index(1), 2, "no")}),
		"retry after":       apierrors.NewTooManyRequests("slow down", 3),
		"a timeout":         apierrors.NewTimeoutError("late", 0),
		"a conflict":        apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "p", errors.New("changed")),
		"an internal error": apierrors.NewInternalError(errors.New("failed calling webhook")),
		"no status":         errors.New("plain"),
		"a wrapped status":  fmt.Errorf("wrapped: %w", forbidden),
		"an aggregate":      utilerrors.NewAggregate([]error{forbidden, errors.New("more")}),
		"a webhook's own status": &apierrors.StatusError{ErrStatus: metav1.Status{
			ListMeta: metav1.ListMeta{ResourceVersion: "1", Continue: "c", RemainingItemCount: &remaining, ShardInfo: &metav1.ShardInfo{Selector: "s \xff"}},
			Status:   "Odd", Message: "no \xff UTF-8 100%", Reason: "My Reason", Code: http.StatusTeapot,
			Details: &metav1.StatusDetails{Name: "n", Group: "g", Kind: "k", UID: "u", RetryAfterSeconds: 2},
		}},
		"an empty status": &apierrors.StatusError{},
		"another text":    otherText{forbidden},
	} {
		t.Run(name, func(t *testing.T) {
			got := roundTripOutcome(t, convert.Outcome{Err: err})
			if got.Err == nil || got.Err.Error() != err.Error() {
				t.Errorf("the error is %v, want %v", got.Err, err)
			}
			if diff := cmp.Diff(responsewriters.ErrorToAPIStatus(err), responsewriters.ErrorToAPIStatus(got.Err)); diff != "" {
				t.Errorf("the answer (-want +got):\n%s", diff)
			}
			if status, ok := err.(*apierrors.StatusError); ok { // only a plain one
				if back, ok := got.Err.(*apierrors.StatusError); !ok || !cmp.Equal(status.ErrStatus, back.ErrStatus) {
					t.Errorf("the status is %#v, want %#v", got.Err, err)
				}
			}
		})
	}
}

// otherText is a status whose error text says something else.
type otherText struct{ *apierrors.StatusError }

func (otherText) Error() string { return "something else" }

func TestOutcomesRoundTrip(t *testing.T) {
	for name, want := range map[string]convert.Outcome{
		"nothing said":       {},
		"webhooks took long": {WebhookLatency: time.Minute + time.Nanosecond},
		"warnings and annotations": {
			Warnings: []convert.Warning{{Text: "b"}, {Text: "a"}, {Agent: "me", Text: "b"}, {Text: "nicht ASCII: ä"}},
			Annotations: []convert.Annotation{
				{Key: "z.k8s.io/z", Value: "1", Level: auditinternal.LevelMetadata},
				{Key: "a.k8s.io/a", Value: "é", Level: auditinternal.LevelRequest},
				{Key: "b.k8s.io/b", Value: "", Level: auditinternal.LevelRequestResponse},
			},
		},
		"no UTF-8": {
			Warnings:    []convert.Warning{{Text: "100% \xff"}},
			Annotations: []convert.Annotation{{Key: "a.k8s.io/a", Value: "%41", Level: auditinternal.LevelMetadata}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(want, roundTripOutcome(t, want)); diff != "" {
				t.Errorf("the outcome (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSilenceIsNoOutcome has an answer that says nothing allow nothing.
func TestSilenceIsNoOutcome(t *testing.T) {
	for name, m := range map[string]*admissionv1.Outcome{"none": nil, "empty": {}} {
		t.Run(name, func(t *testing.T) {
			if got, err := convert.DecodeOutcome(m); err == nil {
				t.Errorf("DecodeOutcome() = %v, nil, want an error", got)
			}
		})
	}
}

func roundTripOutcome(t *testing.T, o convert.Outcome) convert.Outcome {
	t.Helper()
	wire, err := proto.Marshal(convert.EncodeOutcome(o))
	if err != nil {
		t.Fatalf("the message cannot be sent: %v", err)
	}
	m := &admissionv1.Outcome{}
	if err := proto.Unmarshal(wire, m); err != nil {
		t.Fatal(err)
	}
	got, err := convert.DecodeOutcome(m)
	if err != nil {
		t.Fatal(err)
	}
	return got
}
