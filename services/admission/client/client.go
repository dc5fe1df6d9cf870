// Package client is the admission gate as an API server sees it: an
// admission.Interface over the service's stub.
package client

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"time"

	"google.golang.org/grpc"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/admission/internal/convert"
	"github.com/trigate/trigate/services/internal/dial"
)

// hop is the service's name in errors.
const hop = "admission"

// budget bounds a call. Requests that change something end after 34 seconds
// upstream. One that opens a connection has no end of its own; each webhook has
// (30 s at most), and there may be several in a row.
const budget = time.Minute

// Budgets returns the longest deadline of each method.
func Budgets() map[string]time.Duration {
	return map[string]time.Duration{
		admissionv1.AdmissionService_Admit_FullMethodName:    budget,
		admissionv1.AdmissionService_Validate_FullMethodName: budget,
	}
}

// Client runs admission in the service. It can stand wherever upstream has the
// chain of plugins, for all of the API servers of a process. It is safe for
// concurrent use.
//
// A request that cannot be decided is rejected with a status of 503 and
// Retry-After, for which rpcerr.IsCouldNotDecide holds too.
type Client struct {
	dial.Link
	stub  admissionv1.AdmissionServiceClient
	codec *convert.Codec
}

var (
	_ admission.MutationInterface   = (*Client)(nil)
	_ admission.ValidationInterface = (*Client)(nil)
)

// ofAnySize lets answers be larger than any limit of ours: a webhook may have made
// the object so, which is for the resource to judge, or warn and refuse at length.
// Upstream's plugins have no limit either.
var ofAnySize = grpc.MaxCallRecvMsgSize(math.MaxInt32)

// New returns a client that calls over conn, which the caller owns.
func New(conn grpc.ClientConnInterface) *Client {
	return &Client{Link: dial.Borrowed(hop, conn), stub: admissionv1.NewAdmissionServiceClient(conn), codec: convert.NewCodec()}
}

// Handles returns true: the service knows which plugins want the operation.
func (c *Client) Handles(admission.Operation) bool { return true }

// Admit runs the mutating plugins. They may change the content of the
// attributes' object, whose pointer stays the same. It honours ctx's deadline.
func (c *Client) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	attributes, err := c.encode(a, o)
	if err != nil {
		return err
	}
	ahead := aheadFrom(ctx)
	request := &admissionv1.AdmitRequest{Attributes: attributes, AuthorizeAtLeastAsFreshAs: policyOf(ctx), Validate: ahead != nil}
	response, err := c.stub.Admit(ctx, request, ofAnySize)
	if err != nil {
		return undecided(ctx, err)
	}
	if err := c.conclude(ctx, a, response.GetOutcome(), mutatingWebhooks); err != nil {
		return err
	}
	if response.GetObject() != nil {
		if err := c.replace(a.GetObject(), response.GetObject()); err != nil {
			return undecided(ctx, fmt.Errorf("reading the admitted object: %w", err))
		}
	}
	if ahead != nil && response.GetValidation() != nil {
		ahead.remember(c, a, response.GetValidation())
	}
	return nil
}

// Validate runs the validating plugins. It changes nothing, and honours ctx's
// deadline.
func (c *Client) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	attributes, err := c.encode(a, o)
	if err != nil {
		return err
	}
	request := &admissionv1.ValidateRequest{Attributes: attributes, AuthorizeAtLeastAsFreshAs: policyOf(ctx)}
	response, err := c.stub.Validate(ctx, request, ofAnySize)
	if err != nil {
		return undecided(ctx, err)
	}
	return c.conclude(ctx, a, response.GetOutcome(), validatingWebhooks)
}

// encode is done before anything else, so that what the plugins see is what
// the handler has now. An object that cannot be encoded is a fault of ours that
// trying again does not mend.
func (c *Client) encode(a admission.Attributes, o admission.ObjectInterfaces) (*admissionv1.Attributes, error) {
	var mapper runtime.EquivalentResourceMapper
	if o != nil {
		mapper = o.GetEquivalentResourceMapper()
	}
	attributes, err := c.codec.EncodeAttributes(a, mapper)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("preparing admission: %w", err))
	}
	return attributes, nil
}

// conclude does with an outcome what the plugins would have done here: it
// warns, annotates, says how long webhooks took, and returns the rejection.
func (c *Client) conclude(ctx context.Context, a admission.Attributes, m *admissionv1.Outcome, webhooks func(*request.LatencyTrackers) request.DurationTracker) error {
	outcome, err := convert.DecodeOutcome(m)
	if err != nil {
		return undecided(ctx, fmt.Errorf("reading the outcome of admission: %w", err))
	}
	for _, w := range outcome.Warnings {
		warning.AddWarning(ctx, w.Agent, w.Text)
	}
	for _, annotation := range outcome.Annotations {
		if err := a.AddAnnotationWithLevel(annotation.Key, annotation.Value, annotation.Level); err != nil {
			// Upstream's plugins log it too, and go on.
			klog.FromContext(ctx).Info("Dropped an audit annotation of admission", "key", annotation.Key, "reason", err.Error())
		}
	}
	if trackers, ok := request.LatencyTrackersFrom(ctx); ok {
		webhooks(trackers).TrackDuration(outcome.WebhookLatency)
	}
	return outcome.Err
}

func mutatingWebhooks(t *request.LatencyTrackers) request.DurationTracker {
	return t.MutatingWebhookTracker
}

func validatingWebhooks(t *request.LatencyTrackers) request.DurationTracker {
	return t.ValidatingWebhookTracker
}

// replace gives the handler's object the content that the plugins left.
func (c *Client) replace(object runtime.Object, m *admissionv1.Object) error {
	changed, err := c.codec.DecodeLike("object", m, object)
	if err != nil {
		return err
	}
	if u, ok := object.(*unstructured.Unstructured); ok {
		content, ok := changed.(*unstructured.Unstructured)
		if !ok {
			return fmt.Errorf("a %T came back for a %T", changed, object)
		}
		u.Object = content.Object
		return nil
	}
	target, source := reflect.ValueOf(object), reflect.ValueOf(changed)
	if target.Type() != source.Type() || target.Kind() != reflect.Pointer || target.IsNil() {
		return fmt.Errorf("a %T came back for a %T", changed, object)
	}
	target.Elem().Set(source.Elem())
	return nil
}
