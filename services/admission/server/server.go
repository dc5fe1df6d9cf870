// Package server is the gRPC face of the admission gate: it decodes a request,
// runs upstream's chain of plugins on it, and encodes what they said.
package server

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/admission/internal/convert"
	"github.com/trigate/trigate/services/admission/internal/custom"
	"github.com/trigate/trigate/services/admission/internal/interest"
	"github.com/trigate/trigate/services/admission/internal/undecided"
	"github.com/trigate/trigate/services/internal/rpcerr"
	"github.com/trigate/trigate/services/internal/serve"
)

// Name is the service's name in errors and in certificates.
const Name = "admission"

// Policy returns who may call each method: gateways, and people whom the gates
// let post to it.
func Policy() serve.Policy {
	return serve.Policy{
		admissionv1.AdmissionService_Admit_FullMethodName:         serve.Peers(),
		admissionv1.AdmissionService_Validate_FullMethodName:      serve.Peers(),
		admissionv1.AdmissionService_WatchInterest_FullMethodName: serve.Peers(),
	}
}

// Config is what New needs.
type Config struct {
	// Plugins is the chain, with everything upstream wraps around it.
	Plugins admission.Interface
	// Settled are those of the validating plugins whose say on new objects is settled
	// when the mutating ones are through. Nil: none is.
	Settled admission.ValidationInterface
	// Definitions knows custom resources.
	Definitions *custom.Definitions
	// Questions sees what the plugins ask the authorization gate. Nil: they ask
	// nothing.
	Questions *undecided.Tracker
	// Seen is told, before the plugins run, which changes of the policy a gateway wants
	// their questions' answers to have seen. Nil: nobody wants to know.
	Seen func(*authzv1.PolicyRevision)
	// Interest knows what plugins could act on. Nil: nobody may watch it.
	Interest *interest.Hub
	// Synced returns whether all that plugins decide from has been read. Until
	// then nothing is decided. Nil: always.
	Synced func() bool
}

// Server answers the admission service's calls. It is safe for concurrent use.
type Server struct {
	admissionv1.UnimplementedAdmissionServiceServer
	cfg   Config
	codec *convert.Codec
}

var _ admissionv1.AdmissionServiceServer = (*Server)(nil)

// New returns a server.
func New(cfg Config) *Server {
	if cfg.Questions == nil {
		cfg.Questions = undecided.NewTracker()
	}
	if cfg.Seen == nil {
		cfg.Seen = func(*authzv1.PolicyRevision) {}
	}
	if cfg.Synced == nil {
		cfg.Synced = func() bool { return true }
	}
	return &Server{cfg: cfg, codec: convert.NewCodec()}
}

// Admit runs the mutating plugins.
func (s *Server) Admit(ctx context.Context, in *admissionv1.AdmitRequest) (*admissionv1.AdmitResponse, error) {
	call, err := s.newCall(ctx, in)
	if err != nil {
		return nil, err
	}
	chain, ok := s.cfg.Plugins.(admission.MutationInterface)
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
	if in.GetValidate() {
		response.Validation = s.validateAhead(ctx, call.request)
	}
	response.Object, err = s.changed(object, in.GetAttributes(), call.request)
	if err != nil {
		return nil, rpcerr.Internal(fmt.Errorf("encoding the admitted object: %w", err))
	}
	return response, nil
}

// Validate runs the validating plugins.
func (s *Server) Validate(ctx context.Context, in *admissionv1.ValidateRequest) (*admissionv1.ValidateResponse, error) {
	call, err := s.newCall(ctx, in)
	if err != nil {
		return nil, err
	}
	chain, ok := s.cfg.Plugins.(admission.ValidationInterface)
	if ok && chain.Handles(call.request.GetOperation()) {
		call.outcome.Err = chain.Validate(call.ctx, call.attributes, call.objects)
	}
	outcome, err := call.end()
	if err != nil {
		return nil, err
	}
	return &admissionv1.ValidateResponse{Outcome: outcome}, nil
}

// validateAhead returns what the plugins that are settled say of a new object, or nil if
// Validate has to be called: what it says then is in the words for the object as it is
// by then.
func (s *Server) validateAhead(ctx context.Context, request *convert.Request) *admissionv1.Outcome {
	if s.cfg.Settled == nil || request.GetOperation() != admission.Create || !s.cfg.Settled.Handles(admission.Create) {
		return nil
	}
	// What the mutating plugins have said of the request is theirs.
	request = &convert.Request{
		Attributes: admission.NewAttributesRecord(request.GetObject(), request.GetOldObject(), request.GetKind(), request.GetNamespace(), request.GetName(),
			request.GetResource(), request.GetSubresource(), request.GetOperation(), request.GetOperationOptions(), request.IsDryRun(), request.GetUserInfo()),
		Equivalents: request.Equivalents, BuiltIn: request.BuiltIn,
	}
	call := s.begin(ctx, request)
	call.outcome.Err = s.cfg.Settled.Validate(call.ctx, call.attributes, call.objects)
	outcome, err := call.end()
	if err != nil || !outcome.GetAllowed() || len(outcome.GetWarnings()) > 0 {
		return nil
	}
	return outcome
}

// changed returns the message for the object that the plugins left behind, or
// nil if it is the one that came.
func (s *Server) changed(object runtime.Object, m *admissionv1.Attributes, request *convert.Request) (*admissionv1.Object, error) {
	out, err := s.codec.EncodeLike(object, m.GetObject())
	if err != nil || out == nil || m.GetObject().GetEncoding() != admissionv1.Encoding_ENCODING_JSON {
		return out, err
	}
	// JSON can be written in many ways, and people write it. Only a difference
	// to what our own writing of it says is one.
	original, err := s.codec.DecodeObject("attributes.object", m.GetObject(), request.GetResource())
	if err != nil {
		return nil, err
	}
	before, err := s.codec.EncodeLike(original, m.GetObject())
	if err != nil {
		return nil, err
	}
	if before == nil {
		return out, nil
	}
	again, err := s.codec.EncodeLike(object, before)
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
	custom     *custom.Objects
	questions  *undecided.Request
	warnings   *warningRecorder
	outcome    convert.Outcome
}

// question is what both calls have.
type question interface {
	GetAttributes() *admissionv1.Attributes
	GetAuthorizeAtLeastAsFreshAs() *authzv1.PolicyRevision
}

func (s *Server) newCall(ctx context.Context, in question) (*call, error) {
	decoded, err := s.codec.DecodeAttributes("attributes", in.GetAttributes())
	if err != nil {
		return nil, err
	}
	if !s.cfg.Synced() {
		return nil, rpcerr.NotSynced(Name, "its informers have not read everything yet")
	}
	// People could ask for what never comes, and block the questions of all.
	if caller, ok := serve.CallerFrom(ctx); ok && caller.Peer == serve.PeerGateway {
		s.cfg.Seen(in.GetAuthorizeAtLeastAsFreshAs())
	}
	return s.begin(ctx, decoded), nil
}

// begin prepares what the plugins see of a request.
func (s *Server) begin(ctx context.Context, decoded *convert.Request) *call {
	c := &call{request: decoded, warnings: &warningRecorder{}}
	if decoded.BuiltIn != nil {
		c.objects = &schemeObjects{scheme: decoded.BuiltIn, equivalents: decoded.Equivalents}
	} else {
		c.custom = s.cfg.Definitions.For(ctx, decoded.GetResource(), decoded.Equivalents)
		c.objects = c.custom
	}
	// Some plugins annotate the audit event directly, and not the attributes.
	ctx = request.WithLatencyTrackers(audit.WithAuditContext(ctx))
	ctx = warning.WithWarningRecorder(ctx, c.warnings)
	c.attributes = &recordingAttributes{Attributes: decoded.Attributes}
	c.ctx, c.attributes.user, c.questions = s.cfg.Questions.Begin(ctx, decoded.GetUserInfo())
	return c
}

// end returns the message for the outcome, or an error if nothing was decided.
func (c *call) end() (*admissionv1.Outcome, error) {
	if err := c.undecided(); err != nil {
		return nil, err
	}
	c.outcome.Warnings = c.warnings.recorded()
	c.outcome.WebhookLatency = webhookLatency(c.ctx)
	c.outcome.Annotations = append(directAnnotations(c.ctx), c.attributes.recorded()...)
	return convert.EncodeOutcome(c.outcome), nil
}

// undecided returns why the chain's result is not a decision, or nil.
func (c *call) undecided() error {
	if err := c.questions.Err(); err != nil {
		return err
	}
	if c.custom != nil && c.custom.Err() != nil {
		return rpcerr.NotSynced(Name, "the definition of "+c.request.GetResource().GroupResource().String()+" is not known here")
	}
	// A plugin that gave up since the time was over says nothing about the
	// request.
	if ended := c.ctx.Err(); ended != nil && errors.Is(c.outcome.Err, ended) {
		return ended
	}
	return nil
}
