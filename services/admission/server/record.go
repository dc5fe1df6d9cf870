package server

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/trigate/trigate/services/admission/internal/convert"
)

// recordingAttributes are upstream's attributes that remember the annotations
// in the order of their adding. Upstream's own memory of them is not exported;
// its checks stay in force.
type recordingAttributes struct {
	admission.Attributes
	user user.Info

	// mu guards annotations: validating webhooks add theirs concurrently.
	mu          sync.Mutex
	annotations []convert.Annotation
}

// GetUserInfo returns the user, in a form that package undecided knows again.
func (a *recordingAttributes) GetUserInfo() user.Info { return a.user }

// AddAnnotation adds an annotation of level Metadata.
func (a *recordingAttributes) AddAnnotation(key, value string) error {
	return a.AddAnnotationWithLevel(key, value, auditinternal.LevelMetadata)
}

// AddAnnotationWithLevel adds an annotation. It refuses what upstream refuses.
func (a *recordingAttributes) AddAnnotationWithLevel(key, value string, level auditinternal.Level) error {
	if err := a.Attributes.AddAnnotationWithLevel(key, value, level); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	annotation := convert.Annotation{Key: key, Value: value, Level: level}
	if !slices.Contains(a.annotations, annotation) {
		a.annotations = append(a.annotations, annotation)
	}
	return nil
}

func (a *recordingAttributes) recorded() []convert.Annotation {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.annotations)
}

// directAnnotations returns what plugins have written on the audit event
// itself. Such an annotation is logged with every event that is.
func directAnnotations(ctx context.Context) []convert.Annotation {
	annotations := audit.AuditContextFrom(ctx).GetEventAnnotations()
	var direct []convert.Annotation
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		direct = append(direct, convert.Annotation{Key: key, Value: annotations[key], Level: auditinternal.LevelMetadata})
	}
	return direct
}

// webhookLatency returns how long webhooks have kept the request waiting. A call
// asks either mutating or validating ones.
func webhookLatency(ctx context.Context) time.Duration {
	trackers, ok := request.LatencyTrackersFrom(ctx)
	if !ok {
		return 0
	}
	return trackers.MutatingWebhookTracker.GetLatency() + trackers.ValidatingWebhookTracker.GetLatency()
}

// warningRecorder remembers warnings in order. The gateway's own recorder
// drops repetitions and cuts long ones, as in kube-apiserver.
type warningRecorder struct {
	// mu guards warnings: validating webhooks warn concurrently.
	mu       sync.Mutex
	warnings []convert.Warning
}

var _ warning.Recorder = (*warningRecorder)(nil)

// AddWarning remembers a warning.
func (r *warningRecorder) AddWarning(agent, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.warnings = append(r.warnings, convert.Warning{Agent: agent, Text: text})
}

func (r *warningRecorder) recorded() []convert.Warning {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.warnings)
}

// schemeObjects are the object interfaces of built-in types: as kube-apiserver
// has it, their scheme knows everything.
type schemeObjects struct {
	scheme      *runtime.Scheme
	equivalents runtime.EquivalentResourceMapper
}

// GetObjectCreater returns the scheme.
func (o *schemeObjects) GetObjectCreater() runtime.ObjectCreater { return o.scheme }

// GetObjectTyper returns the scheme.
func (o *schemeObjects) GetObjectTyper() runtime.ObjectTyper { return o.scheme }

// GetObjectDefaulter returns the scheme.
func (o *schemeObjects) GetObjectDefaulter() runtime.ObjectDefaulter { return o.scheme }

// GetObjectConvertor returns the scheme.
func (o *schemeObjects) GetObjectConvertor() runtime.ObjectConvertor { return o.scheme }

// GetEquivalentResourceMapper returns the mapper of the request.
func (o *schemeObjects) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper {
	return o.equivalents
}
