package rest

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/munnerz/goautoneg"
	"google.golang.org/protobuf/proto"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
)

// requestBody is a body that has been read, with what is needed to make the message
// of it. It is what hands the request through grpc-gateway's generated handlers to the
// codec, and the codec's error to the error handler: they would make a text of it.
type requestBody struct {
	handler *Handler
	caller  user.Info
	data    []byte
	// defaulted is the object that admission is asked about, if it is JSON.
	defaulted []byte
	// err is why no message could be made of the body.
	err error
}

var _ io.ReadCloser = (*requestBody)(nil)

// Read implements io.Reader. The codec takes the data as it is; nothing is left.
func (b *requestBody) Read([]byte) (int, error) { return 0, io.EOF }

// Close implements io.Closer.
func (b *requestBody) Close() error { return nil }

// decode makes the message of the body by unmarshal, and completes it.
func (b *requestBody) decode(message any, unmarshal func([]byte, proto.Message) (fields, error)) error {
	m, ok := message.(proto.Message)
	if !ok {
		return errors.New("not a message")
	}
	given, err := unmarshal(b.data, m)
	if err == nil {
		err = b.handler.complete(b.caller, m, given)
	}
	if admit, ok := m.(*admissionv1.AdmitRequest); ok && admit.GetAttributes().GetObject().GetEncoding() == admissionv1.Encoding_ENCODING_JSON {
		b.defaulted = admit.GetAttributes().GetObject().GetData()
	}
	b.err = err
	return err
}

// prepare settles the formats of a request that has a handler, and reads its body.
func (h *Handler) prepare(next runtime.HandlerFunc) runtime.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request, params map[string]string) {
		accepted := mediaJSON
		if accept := req.Header.Get("Accept"); accept != "" {
			accepted = goautoneg.Negotiate(accept, []string{mediaJSON, mediaYAML, mediaStream})
		}
		if accepted == mediaStream && IsStream(req.URL.Path) {
			accepted = mediaJSON
		}
		sent := mediaJSON
		if contentType := req.Header.Get("Content-Type"); contentType != "" && req.Method == http.MethodPost {
			sent, _, _ = mime.ParseMediaType(contentType) // "" if it cannot be parsed.
		}
		req.Header = http.Header{"Accept": {accepted}, "Content-Type": {sent}}
		switch {
		case accepted != mediaJSON && accepted != mediaYAML:
			req.Header.Set("Accept", mediaJSON)
			h.writeStatus(w, req, notAcceptable())
			return
		case sent != mediaJSON && sent != mediaYAML:
			h.writeStatus(w, req, unsupported(sent))
			return
		}
		ctx := req.Context()
		caller, _ := genericapirequest.UserFrom(ctx)
		body := &requestBody{handler: h, caller: caller}
		ctx = context.WithValue(ctx, bodyKey{}, body)
		if req.Method == http.MethodPost {
			if body.data, body.err = h.read(w, req); body.err != nil {
				h.writeStatus(w, req, statusOf(body.err))
				return
			}
		}
		if IsStream(req.URL.Path) {
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			defer cancel()
			go func() { // Ends with the request.
				select {
				case <-h.stopped:
					cancel()
				case <-ctx.Done():
				}
			}()
		}
		req = req.WithContext(ctx)
		req.Body = body
		next(w, req, params)
	}
}

func (h *Handler) read(w http.ResponseWriter, req *http.Request) ([]byte, error) {
	reader := req.Body
	if h.cfg.MaxBodyBytes > 0 {
		reader = http.MaxBytesReader(w, req.Body, h.cfg.MaxBodyBytes)
	}
	data, err := io.ReadAll(reader)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &tooLargeError{limit: tooLarge.Limit}
	case err != nil:
		return nil, &fieldError{reason: "the body could not be read to its end"}
	}
	return data, nil
}
