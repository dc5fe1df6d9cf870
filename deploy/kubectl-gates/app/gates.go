package app

import (
	"context"
	"fmt"
	"path"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// The paths of the gates' REST.
const (
	pathStatus         = "/gates/status"
	pathExplain        = "/gates/authz/v1/explain"
	pathWhoCan         = "/gates/authz/v1/who-can"
	pathWatchRevisions = "/gates/authz/v1/watch-policy-revision"
	pathToken          = "/gates/authn/v1/authenticate-token"
	pathAdmit          = "/gates/admission/v1/admit"
	pathValidate       = "/gates/admission/v1/validate"
)

// callTimeout bounds a call with its retries, unless --request-timeout says
// otherwise. client-go tries a 503 ten times, for a second or more each.
const callTimeout = time.Minute

// gates calls the gates by REST. It is safe for concurrent use.
type gates struct {
	client  rest.Interface
	timeout time.Duration
}

// newGates returns the gates of the control plane that the flags name.
func newGates(getter genericclioptions.RESTClientGetter) (*gates, error) {
	config, err := getter.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	// The server has a limit; one of the client's would only slow down many objects.
	config.QPS = -1
	timeout := callTimeout
	if config.Timeout > 0 {
		timeout = config.Timeout
	}
	// The calls have deadlines of their own; this one would end streams.
	config.Timeout = 0
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, err
	}
	return &gates{client: client, timeout: timeout}, nil
}

// post asks one question, and reads the answer into a message.
func (g *gates) post(ctx context.Context, address string, question, answer proto.Message) error {
	content, err := g.postRaw(ctx, address, question)
	if err != nil {
		return err
	}
	return read(address, content, answer)
}

// postRaw asks one question, and returns the answer in JSON. What the server says of a
// failure is an error with a hint.
func (g *gates) postRaw(ctx context.Context, address string, question proto.Message) ([]byte, error) {
	body, err := protojson.Marshal(question)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	return rawOf(g.client.Post().AbsPath(address).Body(body).Do(ctx), "post", address)
}

// read reads a message out of an answer. A gateway may be newer than this program, and
// say more.
func read(address string, content []byte, answer proto.Message) error {
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(content, answer); err != nil {
		return fmt.Errorf("reading the answer of %s: %w", address, err)
	}
	return nil
}

// rawOf is the body of an answer. Raw alone would leave out what the server says of an
// error.
func rawOf(result rest.Result, verb, address string) ([]byte, error) {
	if err := result.Error(); err != nil {
		return nil, newGateError(verb, address, err)
	}
	return result.Raw()
}

// get reads what is at a path.
func (g *gates) get(ctx context.Context, address string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	return rawOf(g.client.Get().AbsPath(address).Do(ctx), "get", address)
}

// gateError is the failure of a call, with what a user may want to know beyond what
// the server said.
type gateError struct {
	err  error
	hint string
}

// newGateError adds to the error of a request what helps.
func newGateError(verb, address string, err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return &gateError{err: err, hint: fmt.Sprintf("Asking this needs the verb %q on the non-resource URL %q, which an administrator can give by\n"+
			"  kubectl create clusterrole gates-%s --verb=%s --non-resource-url=%s\n"+
			"and a clusterrolebinding to it.", verb, address, path.Base(address), verb, address)}
	case apierrors.IsNotFound(err):
		return &gateError{err: err, hint: fmt.Sprintf("The server has no %s: is it a Trigate?", address)}
	case apierrors.IsServiceUnavailable(err), apierrors.IsTooManyRequests(err):
		return &gateError{err: err, hint: "It was asked several times. kubectl gates status shows which gate is not healthy."}
	}
	return err
}

// Error implements error.
func (e *gateError) Error() string { return e.err.Error() + "\n" + e.hint }

// Unwrap returns the server's error.
func (e *gateError) Unwrap() error { return e.err }
