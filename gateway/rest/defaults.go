package rest

import (
	"context"
	"encoding/json"

	"google.golang.org/protobuf/proto"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
)

// kinds are the built-in kinds of a server.
type kinds struct {
	scheme *apiruntime.Scheme
	codecs serializer.CodecFactory
	json   apiruntime.Serializer
}

func newKinds(scheme *apiruntime.Scheme) kinds {
	codecs := serializer.NewCodecFactory(scheme)
	info, _ := apiruntime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), mediaJSON) // Every factory has it.
	return kinds{scheme: scheme, codecs: codecs, json: info.Serializer}
}

// setDefaults has an object of a built-in kind as the API server would have read it from
// a request, which is what admission is asked about: by way of the internal version, with
// the defaults of its own. Others are left as they are: custom and aggregated
// resources, whose defaults the servers of their own know, and objects that are not in
// JSON, which a program wrote that has read them itself.
func (h *Handler) setDefaults(object *admissionv1.Object, field string) error {
	if object == nil || object.GetEncoding() != admissionv1.Encoding_ENCODING_JSON {
		return nil
	}
	kind := schema.GroupVersionKind{Group: object.GetKind().GetGroup(), Version: object.GetKind().GetVersion(), Kind: object.GetKind().GetKind()}
	for _, known := range h.kinds {
		if !known.scheme.Recognizes(kind) {
			continue
		}
		decoded, _, err := known.codecs.UniversalDecoder().Decode(object.GetData(), &kind, nil)
		if err != nil {
			return &fieldError{field: field, reason: "cannot be read: " + oneLine(err)}
		}
		data, err := apiruntime.Encode(known.codecs.EncoderForVersion(known.json, kind.GroupVersion()), decoded)
		if err != nil {
			return &fieldError{field: field, reason: "cannot be written: " + oneLine(err)}
		}
		object.Data = data
		return nil
	}
	return nil
}

// bodyKey is the context's key of the *requestBody.
type bodyKey struct{}

// withDefaulted puts beside an object that admission changed the one that it was asked
// about, or nobody could tell defaults from changes.
func withDefaulted(ctx context.Context, answer proto.Message) (any, error) {
	body, _ := ctx.Value(bodyKey{}).(*requestBody)
	admitted, ok := answer.(*admissionv1.AdmitResponse)
	if !ok || body == nil || body.defaulted == nil || admitted.GetObject() == nil {
		return answer, nil
	}
	data, err := marshalMessage(admitted)
	if err != nil {
		return nil, err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		return nil, err
	}
	members[DefaultedField] = body.defaulted
	return members, nil
}

// DefaultedField is the member of an answer of admit that the gRPC API does not have: the
// object that admission was asked about, if it changed it.
const DefaultedField = "defaultedObject"
