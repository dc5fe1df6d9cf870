package stage

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericadmission "k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	admissionclient "github.com/trigate/trigate/services/admission/client"
)

// allowsAhead is a connection to a service that lets everything go on, and says so of
// validation too. It stands in for the service, of which only the answer matters here.
type allowsAhead struct{ grpc.ClientConnInterface }

func (allowsAhead) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	response, ok := reply.(*admissionv1.AdmitResponse)
	if !ok {
		return errors.New("called for validation")
	}
	response.Outcome, response.Validation = &admissionv1.Outcome{Allowed: true}, &admissionv1.Outcome{Allowed: true}
	return nil
}

// TestAttemptsForgetWhatWasSaidAhead admits a request again when somebody is interested in
// its validation who was not at first: what was said ahead of the first attempt may not
// stand in for that.
func TestAttemptsForgetWhatWasSaidAhead(t *testing.T) {
	ctx := context.WithValue(t.Context(), failureKey{}, &failure{})
	pod := &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns"}}
	a := genericadmission.NewAttributesRecord(pod, nil, schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, "ns", "a",
		schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "", genericadmission.Create, &metav1.CreateOptions{}, false, nil)
	admit := func() {
		t.Helper()
		if err := admissionclient.New(allowsAhead{}).Admit(admissionclient.WithAhead(ctx, aheadOf(ctx)), a, nil); err != nil {
			t.Fatal(err)
		}
	}
	admit()
	if !aheadOf(ctx).Conclude(ctx, a) {
		t.Fatal("Conclude() = false after an attempt that was validated ahead, want true")
	}
	admit()
	again := &interestedAdmission{skip: false} // as if nothing were settled
	if again.withAhead(ctx, a, nil) != ctx {
		t.Error("the second attempt asks for validation ahead")
	}
	if aheadOf(ctx).Conclude(ctx, a) {
		t.Error("Conclude() = true by what was said of the first attempt, want that Validate has to be called")
	}
	if again.withAhead(t.Context(), a, nil) != t.Context() {
		t.Error("something that is no request asks for validation ahead")
	}
}
