// Package limits tests requests near the limits: large objects, and users, paths and
// selectors whose bytes are no ASCII or no UTF-8. Stock kube-apiserver and Trigate
// have to answer all of them alike.
package limits

import (
	"net/http"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

const (
	selfSubjectReviews     = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	tokenReviews           = "/apis/authentication.k8s.io/v1/tokenreviews"
	subjectAccessReviews   = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
	selfSubjectAccess      = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	selfSubjectRulesReview = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"

	typeJSON     = "application/json"
	typeProtobuf = runtime.ContentTypeProtobuf
)

// asProtobuf and acceptProtobuf are for objects with strings that JSON cannot hold.
var asProtobuf = framework.ContentType(typeProtobuf)

func acceptProtobuf(req *http.Request) { req.Header.Set("Accept", typeProtobuf) }

// core is the path of a collection of the core group.
func core(namespace, resource string) string {
	return "/api/v1/namespaces/" + namespace + "/" + resource
}

// inProtobuf is an object as a client sends it in protobuf, where strings are any
// bytes.
func inProtobuf(t *testing.T, obj runtime.Object) string {
	t.Helper()
	kinds, _, err := scheme.Scheme.ObjectKinds(obj)
	if err != nil {
		t.Fatal(err)
	}
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), typeProtobuf)
	if !ok {
		t.Fatalf("the scheme has no serializer for %s", typeProtobuf)
	}
	content, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, kinds[0].GroupVersion()), obj)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// fromProtobuf reads an answer in protobuf.
func fromProtobuf(t *testing.T, answer *framework.Answer, into runtime.Object) {
	t.Helper()
	if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(answer.Body, nil, into); err != nil {
		t.Fatalf("%s: reading the answer: %v; it was:\n%q", answer.Request, err, answer.Body)
	}
}
