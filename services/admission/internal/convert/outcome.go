package convert

import (
	"errors"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/internal/identity"
)

// Warning is a warning for the client.
type Warning struct {
	// Agent is who warns, "" for the API server.
	Agent string
	// Text is the warning.
	Text string
}

// Annotation is an annotation for the audit event.
type Annotation struct {
	// Key and Value are the annotation.
	Key, Value string
	// Level is from which audit level on it is logged.
	Level auditinternal.Level
}

// Outcome is what the plugins said of a request.
type Outcome struct {
	// Err is why the request is rejected, or nil.
	Err error
	// Warnings are in the order in which they were given.
	Warnings []Warning
	// Annotations are in the order in which they were added.
	Annotations []Annotation
	// WebhookLatency is how long the request waited for webhooks.
	WebhookLatency time.Duration
}

// EncodeOutcome returns the message for an outcome.
func EncodeOutcome(o Outcome) *admissionv1.Outcome {
	m := &admissionv1.Outcome{Allowed: o.Err == nil}
	if o.Err != nil {
		m.Failure = encodeFailure(o.Err)
	}
	for _, warning := range o.Warnings {
		m.Warnings = append(m.Warnings, &admissionv1.Warning{Agent: warning.Agent, Text: warning.Text})
	}
	for _, annotation := range o.Annotations {
		m.AuditAnnotations = append(m.AuditAnnotations, &admissionv1.AuditAnnotation{
			Key: annotation.Key, Value: annotation.Value, Level: string(annotation.Level),
		})
	}
	if o.WebhookLatency != 0 {
		m.WebhookLatency = durationpb.New(o.WebhookLatency)
	}
	needed := false
	eachOutcomeString(m, func(s *string) { needed = needed || identity.NeedsEncoding(*s) })
	if needed {
		m.PercentEncoded = true
		eachOutcomeString(m, func(s *string) { *s = identity.Encode(*s) })
	}
	return m
}

// encodeFailure takes the status of an error that is one itself, and not of
// one that only wraps one: so do upstream's handlers when they answer.
func encodeFailure(err error) *admissionv1.Failure {
	failure := &admissionv1.Failure{Message: err.Error()}
	if status, ok := err.(apierrors.APIStatus); ok {
		failure.Status = encodeStatus(status.Status())
	}
	return failure
}

// DecodeOutcome returns the outcome that a message stands for, or an error if it
// neither allows nor says why not. The message is not changed.
func DecodeOutcome(m *admissionv1.Outcome) (Outcome, error) {
	if m.GetPercentEncoded() {
		m = proto.CloneOf(m)
		decoder := identity.NewDecoder(true)
		eachOutcomeString(m, func(s *string) { *s = decoder.String("outcome", *s) })
		if err := decoder.Err(); err != nil {
			return Outcome{}, err
		}
	}
	o := Outcome{WebhookLatency: m.GetWebhookLatency().AsDuration()}
	switch {
	case m.GetAllowed():
	case m.GetFailure() == nil:
		return Outcome{}, errors.New("the outcome neither allows nor says why not")
	default:
		o.Err = decodeFailure(m.GetFailure())
	}
	for _, warning := range m.GetWarnings() {
		o.Warnings = append(o.Warnings, Warning{Agent: warning.GetAgent(), Text: warning.GetText()})
	}
	for _, annotation := range m.GetAuditAnnotations() {
		o.Annotations = append(o.Annotations, Annotation{
			Key: annotation.GetKey(), Value: annotation.GetValue(), Level: auditinternal.Level(annotation.GetLevel()),
		})
	}
	return o, nil
}

// statusError is a status whose error text is not its message.
type statusError struct {
	*apierrors.StatusError
	text string
}

// Error returns the text of the plugin's error.
func (e *statusError) Error() string { return e.text }

// Unwrap lets errors.As find the plain status.
func (e *statusError) Unwrap() error { return e.StatusError }

func decodeFailure(m *admissionv1.Failure) error {
	if m.GetStatus() == nil {
		return errors.New(m.GetMessage())
	}
	status := &apierrors.StatusError{ErrStatus: decodeStatus(m.GetStatus())}
	if status.Error() != m.GetMessage() {
		return &statusError{StatusError: status, text: m.GetMessage()}
	}
	return status
}

func encodeStatus(s metav1.Status) *admissionv1.Status {
	m := &admissionv1.Status{Status: s.Status, Message: s.Message, Reason: string(s.Reason), Code: s.Code}
	if s.ListMeta != (metav1.ListMeta{}) {
		m.Metadata = &admissionv1.StatusMetadata{
			SelfLink:           s.GetSelfLink(),
			ResourceVersion:    s.ResourceVersion,
			Continue:           s.Continue,
			RemainingItemCount: s.RemainingItemCount,
		}
		if s.ShardInfo != nil {
			m.Metadata.ShardInfo = &admissionv1.ShardInfo{Selector: s.ShardInfo.Selector}
		}
	}
	if d := s.Details; d != nil {
		m.Details = &admissionv1.StatusDetails{
			Name: d.Name, Group: d.Group, Kind: d.Kind, Uid: string(d.UID), RetryAfterSeconds: d.RetryAfterSeconds,
		}
		for _, cause := range d.Causes {
			m.Details.Causes = append(m.Details.Causes, &admissionv1.StatusCause{
				Type: string(cause.Type), Message: cause.Message, Field: cause.Field,
			})
		}
	}
	return m
}

func decodeStatus(m *admissionv1.Status) metav1.Status {
	s := metav1.Status{
		Status: m.GetStatus(), Message: m.GetMessage(), Reason: metav1.StatusReason(m.GetReason()), Code: m.GetCode(),
	}
	if meta := m.GetMetadata(); meta != nil {
		s.ListMeta = metav1.ListMeta{
			ResourceVersion:    meta.GetResourceVersion(),
			Continue:           meta.GetContinue(),
			RemainingItemCount: meta.RemainingItemCount,
		}
		s.SetSelfLink(meta.GetSelfLink())
		if shard := meta.GetShardInfo(); shard != nil {
			s.ShardInfo = &metav1.ShardInfo{Selector: shard.GetSelector()}
		}
	}
	if d := m.GetDetails(); d != nil {
		s.Details = &metav1.StatusDetails{
			Name: d.GetName(), Group: d.GetGroup(), Kind: d.GetKind(), UID: types.UID(d.GetUid()), RetryAfterSeconds: d.GetRetryAfterSeconds(),
		}
		for _, cause := range d.GetCauses() {
			s.Details.Causes = append(s.Details.Causes, metav1.StatusCause{
				Type: metav1.CauseType(cause.GetType()), Message: cause.GetMessage(), Field: cause.GetField(),
			})
		}
	}
	return s
}

// eachOutcomeString visits every string that percent_encoded speaks of.
func eachOutcomeString(m *admissionv1.Outcome, visit func(s *string)) {
	if failure := m.GetFailure(); failure != nil {
		visit(&failure.Message)
		eachStatusString(failure.GetStatus(), visit)
	}
	for _, warning := range m.GetWarnings() {
		visit(&warning.Agent)
		visit(&warning.Text)
	}
	for _, annotation := range m.GetAuditAnnotations() {
		visit(&annotation.Key)
		visit(&annotation.Value)
		visit(&annotation.Level)
	}
}

func eachStatusString(m *admissionv1.Status, visit func(s *string)) {
	if m == nil {
		return
	}
	visit(&m.Status)
	visit(&m.Message)
	visit(&m.Reason)
	if meta := m.GetMetadata(); meta != nil {
		visit(&meta.SelfLink)
		visit(&meta.ResourceVersion)
		visit(&meta.Continue)
		if shard := meta.GetShardInfo(); shard != nil {
			visit(&shard.Selector)
		}
	}
	if d := m.GetDetails(); d != nil {
		visit(&d.Name)
		visit(&d.Group)
		visit(&d.Kind)
		visit(&d.Uid)
		for _, cause := range d.GetCauses() {
			visit(&cause.Type)
			visit(&cause.Message)
			visit(&cause.Field)
		}
	}
}
