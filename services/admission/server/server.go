// Package server is the gRPC face of the admission gate: it decodes a request,
// runs upstream's chain of plugins on it, and encodes what they said.
package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/warning"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/admission/internal/convert"
	"github.com/trigate/trigate/services/internal/rpcerr"
	"github.com/trigate/trigate/services/internal/serve"
)

// Name is the service's name in errors and in certificates.
const Name = "admission"

// budget is the deadline of calls that come without one. kube-apiserver gives a
// request as much by default (--request-timeout).
const budget = time.Minute

// Policy returns who may call each method: gateways, and people whom the gates
// let post to it.
func Policy() serve.Policy {
	return serve.Policy{
		admissionv1.AdmissionService_Admit_FullMethodName:    serve.Peers(),
		admissionv1.AdmissionService_Validate_FullMethodName: serve.Peers(),
	}
}

// Budgets returns the deadlines of calls that come without one.
func Budgets() map[string]time.Duration {
	return map[string]time.Duration{
		admissionv1.AdmissionService_Admit_FullMethodName:    budget,
		admissionv1.AdmissionService_Validate_FullMethodName: budget,
	}
}

// Objects makes the object interfaces of custom resources, of which no scheme
// knows anything.
type Objects interface {
	// ForCustomResource returns the interfaces for one request. It does not
	// block and never returns nil. The result is used by one request, and must
	// allow concurrent calls.
	ForCustomResource(ctx context.Context, request *convert.Request) CustomObject
}

// CustomObject is what plugins are told of a custom resource.
type CustomObject interface {
	admission.ObjectInterfaces
	// Err returns why the plugins may have been told wrong, or nil. It is asked
	// after they have run.
	Err() error
}

// Config is what New needs.
type Config struct {
	// Chain is the chain of plugins, with everything upstream wraps around it.
	Chain admission.Interface
	// Codec knows the built-in types.
	Codec *convert.Codec
	// CustomResources knows the others.
	CustomResources Objects
}

// Server answers the admission service's calls. It is safe for concurrent use.
type Server struct {
	admissionv1.UnimplementedAdmissionServiceServer
	cfg Config
}

var _ admissionv1.AdmissionServiceServer = (*Server)(nil)

// New returns a server.
func New(cfg Config) *Server { return &Server{cfg: cfg} }

// Admit runs the mutating plugins.
func (s *Server) Admit(ctx context.Context, in *admissionv1.AdmitRequest) (*admissionv1.AdmitResponse, error) {
	call, err := s.newCall(ctx, in.GetAttributes())
	if err != nil {
		return nil, err
	}
	chain, ok := s.cfg.Chain.(admission.MutationInterface)
	if ok && chain.Handles(call.request.GetOperation()) {
		call.outcome.Err = chain.Admit(call.ctx, call.attributes, call.objects)
	}
	outcome, err := call.end()
	if err != nil {
		return nil, err
	}
	response := &admissionv1.AdmitResponse{Outcome: outcome}
	object := call.request.GetObject()
	if call.outcome.Err != nil || object == nil {
		return response, nil
	}
	response.Object, err = s.changed(object, in.GetAttributes(), call.request)
	if err != nil {
		return nil, rpcerr.Internal(fmt.Errorf("encoding the admitted object: %w", err))
	}
	return response, nil
}

// Validate runs the validating plugins.
func (s *Server) Validate(ctx context.Context, in *admissionv1.ValidateRequest) (*admissionv1.ValidateResponse, error) {
	call, err := s.newCall(ctx, in.GetAttributes())
	if err != nil {
		return nil, err
	}
	chain, ok := s.cfg.Chain.(admission.ValidationInterface)
	if ok && chain.Handles(call.request.GetOperation()) {
		call.outcome.Err = chain.Validate(call.ctx, call.attributes, call.objects)
	}
	outcome, err := call.end()
	if err != nil {
		return nil, err
	}
	return &admissionv1.ValidateResponse{Outcome: outcome}, nil
}

// changed returns the message for the object that the plugins left behind, or
// nil if it is the one that came.
func (s *Server) changed(object runtime.Object, m *admissionv1.Attributes, request *convert.Request) (*admissionv1.Object, error) {
	out, err := s.cfg.Codec.EncodeLike(object, m.GetObject())
	if err != nil || out == nil || m.GetObject().GetEncoding() != admissionv1.Encoding_ENCODING_JSON {
		return out, err
	}
	// JSON can be written in many ways, and people write it. Only a difference
	// to what our own writing of it says is one.
	original, err := s.cfg.Codec.DecodeObject("attributes.object", m.GetObject(), request.GetResource())
	if err != nil {
		return nil, err
	}
	before, err := s.cfg.Codec.EncodeLike(original, m.GetObject())
	if err != nil {
		return nil, err
	}
	if before == nil {
		return out, nil
	}
	again, err := s.cfg.Codec.EncodeLike(object, before)
	if again == nil {
		return nil, err
	}
	return out, err
}

// call is one request on its way through the chain.
type call struct {
	ctx        context.Context
	request    *convert.Request
	attributes *recordingAttributes
	objects    admission.ObjectInterfaces
	custom     CustomObject
	warnings   *warningRecorder
	outcome    convert.Outcome
}

func (s *Server) newCall(ctx context.Context, m *admissionv1.Attributes) (*call, error) {
	request, err := s.cfg.Codec.DecodeAttributes("attributes", m)
	if err != nil {
		return nil, err
	}
	c := &call{
		request:    request,
		attributes: &recordingAttributes{Attributes: request.Attributes},
		warnings:   &warningRecorder{},
	}
	if request.BuiltIn != nil {
		c.objects = builtInObjects(request)
	} else {
		c.custom = s.cfg.CustomResources.ForCustomResource(ctx, request)
		c.objects = c.custom
	}
	// Some plugins annotate the audit event directly, and not the attributes.
	c.ctx = warning.WithWarningRecorder(audit.WithAuditContext(ctx), c.warnings)
	return c, nil
}

// end returns the message for the outcome, or an error if nothing was decided.
func (c *call) end() (*admissionv1.Outcome, error) {
	if err := c.undecided(); err != nil {
		return nil, err
	}
	c.outcome.Warnings = c.warnings.recorded()
	c.outcome.Annotations = append(directAnnotations(c.ctx), c.attributes.recorded()...)
	return convert.EncodeOutcome(c.outcome), nil
}

// undecided returns why the chain's result is not a decision, or nil. A plugin
// that gave up since the request's time was over, or since it could not ask
// another gate, says nothing about the request.
func (c *call) undecided() error {
	if c.custom != nil && c.custom.Err() != nil {
		return rpcerr.NotSynced(Name, "custom resource definitions")
	}
	err := c.outcome.Err
	if err == nil {
		return nil
	}
	if c.ctx.Err() != nil && errors.Is(err, c.ctx.Err()) {
		return err
	}
	if known, ok := rpcerr.As(err); ok {
		return known
	}
	return nil
}
