package rest

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
)

func TestUnmarshal(t *testing.T) {
	object := &admissionv1.Object{
		Kind:     &admissionv1.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
		Encoding: admissionv1.Encoding_ENCODING_JSON, Data: []byte(`{"apiVersion":"apps/v1","kind":"Deployment"}`),
	}
	for name, tc := range map[string]struct {
		codec *codec
		body  string
		want  proto.Message
	}{
		"nothing":            {jsonCodec, " \n", &authzv1.AuthorizeRequest{}},
		"camelCase":          {jsonCodec, `{"attributes":{"resourceRequest":true}}`, &authzv1.AuthorizeRequest{Attributes: &authzv1.Attributes{ResourceRequest: true}}},
		"snake_case":         {jsonCodec, `{"attributes":{"resource_request":true}}`, &authzv1.AuthorizeRequest{Attributes: &authzv1.Attributes{ResourceRequest: true}}},
		"null is not there":  {jsonCodec, `{"attributes":null}`, &authzv1.AuthorizeRequest{}},
		"YAML":               {yamlCodec, "attributes:\n  verb: get\n", &authzv1.AuthorizeRequest{Attributes: &authzv1.Attributes{Verb: "get"}}},
		"an object":          {jsonCodec, `{"attributes":{"object":{"apiVersion":"apps/v1","kind":"Deployment"}}}`, &admissionv1.AdmitRequest{Attributes: &admissionv1.Attributes{Object: object}}},
		"an enum":            {jsonCodec, `{"attributes":{"operation":"OPERATION_DELETE"}}`, &admissionv1.AdmitRequest{Attributes: &admissionv1.Attributes{Operation: admissionv1.Operation_OPERATION_DELETE}}},
		"an enum's own part": {yamlCodec, "attributes: {operation: DELETE}", &admissionv1.AdmitRequest{Attributes: &admissionv1.Attributes{Operation: admissionv1.Operation_OPERATION_DELETE}}},
		"bytes in base64":    {jsonCodec, `{"claims":"e30="}`, &authnv1.IssueTokenRequest{Claims: []byte(`{}`)}},
		"bytes as JSON":      {jsonCodec, `{"claims":{"sub":"a"}}`, &authnv1.IssueTokenRequest{Claims: []byte(`{"sub":"a"}`)}},
	} {
		t.Run(name, func(t *testing.T) {
			got := tc.want.ProtoReflect().New().Interface()
			if _, err := tc.codec.unmarshal([]byte(tc.body), got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("unmarshal(%s) differs (-want +got):\n%s", tc.body, diff)
			}
		})
	}
}

func TestUnmarshalRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		codec       *codec
		body        string
		field, text string
	}{
		"what is not JSON":          {jsonCodec, `{"attributes":{"verb":get}}`, "attributes.verb", "not JSON"},
		"what is not YAML":          {yamlCodec, "attributes: [", "", "not YAML"},
		"a key twice in YAML":       {yamlCodec, "attributes: {}\nattributes: {}\n", "", "not YAML"},
		"a field twice":             {jsonCodec, `{"attributes":{"dryRun":true,"dry_run":true}}`, "attributes.dry_run", "more than once"},
		"two texts":                 {jsonCodec, `{} {}`, "", "more than one"},
		"another type":              {jsonCodec, `{"attributes":{"dryRun":"yes"}}`, "attributes.dryRun", "true or false"},
		"an element":                {jsonCodec, `{"attributes":{"user":{"groups":["a",1]}}}`, "attributes.user.groups[1]", "a string"},
		"an unknown field":          {jsonCodec, `{"attributes":{"zzzzzz":1}}`, "attributes.zzzzzz", "unknown field"},
		"a misspelt field":          {jsonCodec, `{"attributes":{"operaton":1}}`, "attributes.operaton", `did you mean "operation"?`},
		"a value of no enum":        {jsonCodec, `{"attributes":{"operation":"PATCH"}}`, "attributes.operation", "one of CREATE, UPDATE, DELETE, CONNECT"},
		"an object without kind":    {jsonCodec, `{"attributes":{"object":{"apiVersion":"v1"}}}`, "attributes.object.kind", "has to be there"},
		"an object without version": {jsonCodec, `{"attributes":{"object":{"kind":"Pod"}}}`, "attributes.object.apiVersion", "has to be there"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tc.codec.unmarshal([]byte(tc.body), &admissionv1.AdmitRequest{})
			var field *fieldError
			if !errors.As(err, &field) || field.field != tc.field || !strings.Contains(field.reason, tc.text) {
				t.Errorf("unmarshal(%s) = %v, want %q of the field %q", tc.body, err, tc.text, tc.field)
			}
		})
	}
}

// TestStatusOfEveryCode wants an answer for each gRPC code, and that what is not the
// request's fault says nothing of the inside.
func TestStatusOfEveryCode(t *testing.T) {
	const inside = "dial tcp 10.0.0.1:443"
	for code, want := range map[codes.Code]int32{
		codes.Canceled: 499, codes.Unknown: http.StatusInternalServerError, codes.InvalidArgument: http.StatusBadRequest,
		codes.DeadlineExceeded: http.StatusGatewayTimeout, codes.NotFound: http.StatusNotFound, codes.AlreadyExists: http.StatusConflict,
		codes.PermissionDenied: http.StatusServiceUnavailable, codes.ResourceExhausted: http.StatusTooManyRequests,
		codes.FailedPrecondition: http.StatusConflict, codes.Aborted: http.StatusConflict, codes.OutOfRange: http.StatusBadRequest,
		codes.Unimplemented: http.StatusNotImplemented, codes.Internal: http.StatusInternalServerError,
		codes.Unavailable: http.StatusServiceUnavailable, codes.DataLoss: http.StatusInternalServerError,
		codes.Unauthenticated: http.StatusServiceUnavailable,
	} {
		t.Run(code.String(), func(t *testing.T) {
			got := statusOf(status.Error(code, inside))
			if got.Code != want || got.Kind != "Status" || got.APIVersion != "v1" || got.Status != metav1.StatusFailure || got.Reason == "" {
				t.Errorf("statusOf = %+v, want a Status of %d", got, want)
			}
			if (want == http.StatusInternalServerError || want == http.StatusServiceUnavailable) && strings.Contains(got.Message, inside) {
				t.Errorf("message = %q, which tells of the inside", got.Message)
			}
			later := got.Details != nil && got.Details.RetryAfterSeconds > 0
			if wanted := want == http.StatusServiceUnavailable || want == http.StatusTooManyRequests; later != wanted {
				t.Errorf("details = %+v, want that it says when to try again: %t", got.Details, wanted)
			}
		})
	}
}
