package server_test

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
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
			object, err := codec.DecodeObject("object", jsonOf(target.kind), gvr)
			if err != nil {
				f.Fatal(err)
			}
			seed, err := codec.EncodeLike(object, &admissionv1.Object{Kind: target.kind, Encoding: encoding})
			if err != nil {
				continue // a custom resource has no protobuf form
			}
			f.Add(uint8(i), int32(encoding), seed.GetData(), "", int32(0))
			f.Add(uint8(i), int32(encoding), seed.GetData(), "metadata.creationTimestamp", int32(1))
		}
	}
	handlers := server.New(server.Config{Plugins: admission.NewChainHandler()})
	f.Fuzz(func(t *testing.T, target uint8, encoding int32, data []byte, timeField string, nanos int32) {
		which := fuzzed[int(target)%len(fuzzed)]
		attributes := &admissionv1.Attributes{
			Operation: admissionv1.Operation_OPERATION_CREATE,
			Kind:      which.kind,
			Resource:  which.resource,
			Object:    &admissionv1.Object{Kind: which.kind, Encoding: admissionv1.Encoding(encoding), Data: data},
		}
		if timeField != "" {
			attributes.Object.TimeFractions = []*admissionv1.TimeFraction{{Field: timeField, Nanos: nanos}}
		}
		response, err := handlers.Admit(t.Context(), &admissionv1.AdmitRequest{Attributes: attributes})
		mustBeClear(t, response.GetOutcome(), err)
	})
}

// FuzzRequests has bytes of any kind be a request, an InvalidArgument, or nothing
// worse, in both phases.
func FuzzRequests(f *testing.F) {
	for _, attributes := range []*admissionv1.Attributes{
		{
			Operation: admissionv1.Operation_OPERATION_UPDATE, Kind: fuzzed[0].kind, Resource: fuzzed[0].resource, Namespace: "ns", Name: "n",
			User:      &authnv1.UserInfo{Name: "somebody", Groups: []string{"g"}},
			Object:    jsonOf(fuzzed[0].kind),
			OldObject: jsonOf(fuzzed[0].kind),
			Options:   jsonOf(kindOf("meta.k8s.io", "v1", "UpdateOptions")),
		},
		{
			Operation: admissionv1.Operation_OPERATION_CONNECT, Kind: kindOf("", "v1", "PodExecOptions"), Resource: fuzzed[0].resource,
			Subresource: "exec", Name: "%ff", PercentEncoded: true, Object: jsonOf(kindOf("", "v1", "PodExecOptions")),
		},
		{
			Operation: admissionv1.Operation_OPERATION_DELETE, Kind: kindOf("example.com", "v1", "Widget"), Resource: resourceOf("example.com", "v1", "widgets"),
			DryRun: true, OldObject: jsonOf(kindOf("example.com", "v1", "Widget")),
			Equivalents: []*admissionv1.EquivalentResource{{Resource: resourceOf("example.com", "v2", "widgets"), Kind: kindOf("example.com", "v2", "Widget")}},
		},
	} {
		seed, err := proto.Marshal(attributes)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	handlers := server.New(server.Config{Plugins: admission.NewChainHandler()})
	f.Fuzz(func(t *testing.T, data []byte) {
		attributes := &admissionv1.Attributes{}
		if proto.Unmarshal(data, attributes) != nil {
			return // refused by gRPC itself
		}
		admitted, err := handlers.Admit(t.Context(), &admissionv1.AdmitRequest{Attributes: attributes})
		mustBeClear(t, admitted.GetOutcome(), err)
		validated, err := handlers.Validate(t.Context(), &admissionv1.ValidateRequest{Attributes: attributes})
		mustBeClear(t, validated.GetOutcome(), err)
	})
}

// mustBeClear wants what a chain without plugins may answer: yes, or an
// InvalidArgument that says where.
func mustBeClear(t *testing.T, outcome *admissionv1.Outcome, err error) {
	t.Helper()
	switch e, ok := rpcerr.As(err); {
	case err == nil && !outcome.GetAllowed():
		t.Errorf("the outcome is %v, want it allowed", outcome)
	case err != nil && (!ok || e.Reason != rpcerr.ReasonInvalidArgument || e.Field == ""):
		t.Errorf("the error is %v, want an InvalidArgument with a field", err)
	}
}

func jsonOf(kind *admissionv1.GroupVersionKind) *admissionv1.Object {
	return &admissionv1.Object{Kind: kind, Encoding: admissionv1.Encoding_ENCODING_JSON, Data: seedJSON(kind)}
}

func seedJSON(kind *admissionv1.GroupVersionKind) []byte {
	apiVersion := kind.GetVersion()
	if kind.GetGroup() != "" {
		apiVersion = kind.GetGroup() + "/" + apiVersion
	}
	return []byte(`{"apiVersion":"` + apiVersion + `","kind":"` + kind.GetKind() + `","metadata":{"name":"n","labels":{"a":"b"}},` +
		`"spec":{"replicas":1,"containers":[{"name":"c"}],"template":{"spec":{"containers":[{"name":"c"}]}}}}`)
}
