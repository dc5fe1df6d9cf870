package server_test

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/admission/internal/convert"
	"github.com/trigate/trigate/services/admission/server"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// fuzzed are the resources that an object is taken for.
var fuzzed = []struct {
	resource *admissionv1.GroupVersionResource
	kind     *admissionv1.GroupVersionKind
}{
	{resourceOf("", "v1", "pods"), kindOf("", "v1", "Pod")},
	{resourceOf("", "v1", "events"), kindOf("", "v1", "Event")},
	{resourceOf("apps", "v1", "deployments"), kindOf("apps", "v1", "Deployment")},
	{resourceOf("apps", "v1", "controllerrevisions"), kindOf("apps", "v1", "ControllerRevision")},
	{resourceOf("autoscaling", "v1", "horizontalpodautoscalers"), kindOf("autoscaling", "v1", "HorizontalPodAutoscaler")},
	{resourceOf("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies"), kindOf("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy")},
	{resourceOf("resource.k8s.io", "v1", "resourceclaims"), kindOf("resource.k8s.io", "v1", "ResourceClaim")},
	{resourceOf("rbac.authorization.k8s.io", "v1", "roles"), kindOf("rbac.authorization.k8s.io", "v1", "Role")},
	{resourceOf("apiextensions.k8s.io", "v1", "customresourcedefinitions"), kindOf("apiextensions.k8s.io", "v1", "CustomResourceDefinition")},
	{resourceOf("apiregistration.k8s.io", "v1", "apiservices"), kindOf("apiregistration.k8s.io", "v1", "APIService")},
	{resourceOf("example.com", "v1", "widgets"), kindOf("example.com", "v1", "Widget")},
	{resourceOf("example.com", "v1", "widgets"), kindOf("autoscaling", "v1", "Scale")},
}

func resourceOf(group, version, resource string) *admissionv1.GroupVersionResource {
	return &admissionv1.GroupVersionResource{Group: group, Version: version, Resource: resource}
}

func kindOf(group, version, kind string) *admissionv1.GroupVersionKind {
	return &admissionv1.GroupVersionKind{Group: group, Version: version, Kind: kind}
}

// FuzzObjects has bytes of any kind be an object, an InvalidArgument, or
// nothing worse: a chain without plugins lets every object pass.
func FuzzObjects(f *testing.F) {
	codec := convert.NewCodec()
	for i, target := range fuzzed {
		for _, encoding := range []admissionv1.Encoding{admissionv1.Encoding_ENCODING_PROTOBUF, admissionv1.Encoding_ENCODING_JSON, admissionv1.Encoding_ENCODING_CBOR} {
			gvr := schema.GroupVersionResource{Group: target.resource.GetGroup(), Version: target.resource.GetVersion(), Resource: target.resource.GetResource()}
			json := &admissionv1.Object{Kind: target.kind, Encoding: admissionv1.Encoding_ENCODING_JSON, Data: seedJSON(target.kind)}
			object, err := codec.DecodeObject("object", json, gvr)
			if err != nil {
				f.Fatal(err)
			}
			seed, err := codec.EncodeLike(object, &admissionv1.Object{Kind: target.kind, Encoding: encoding})
			if err != nil {
				continue // a custom resource has no protobuf form
			}
			f.Add(uint8(i), int32(encoding), seed.GetData())
		}
	}
	handlers := server.New(server.Config{Plugins: admission.NewChainHandler()})
	f.Fuzz(func(t *testing.T, target uint8, encoding int32, data []byte) {
		which := fuzzed[int(target)%len(fuzzed)]
		attributes := &admissionv1.Attributes{
			Operation: admissionv1.Operation_OPERATION_CREATE,
			Kind:      which.kind,
			Resource:  which.resource,
			Object:    &admissionv1.Object{Kind: which.kind, Encoding: admissionv1.Encoding(encoding), Data: data},
		}
		if which.resource.GetGroup() == "example.com" {
			attributes.Resource = resourceOf("example.com", "v1", "widgets")
		}
		response, err := handlers.Admit(context.Background(), &admissionv1.AdmitRequest{Attributes: attributes})
		switch e, ok := rpcerr.As(err); {
		case err == nil && !response.GetOutcome().GetAllowed():
			t.Errorf("Admit() = %v, want it allowed", response)
		case err != nil && (!ok || e.Reason != rpcerr.ReasonInvalidArgument || e.Field == ""):
			t.Errorf("Admit() = %v, want an InvalidArgument with a field", err)
		}
	})
}

func seedJSON(kind *admissionv1.GroupVersionKind) []byte {
	apiVersion := kind.GetVersion()
	if kind.GetGroup() != "" {
		apiVersion = kind.GetGroup() + "/" + apiVersion
	}
	return []byte(`{"apiVersion":"` + apiVersion + `","kind":"` + kind.GetKind() + `","metadata":{"name":"n","labels":{"a":"b"}},` +
		`"spec":{"replicas":1,"containers":[{"name":"c"}],"template":{"spec":{"containers":[{"name":"c"}]}}}}`)
}
