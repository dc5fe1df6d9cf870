package convert_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/policy"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/admission/internal/convert"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// facts are what attributes say, for comparing.
type facts struct {
	Kind                     schema.GroupVersionKind
	Resource                 schema.GroupVersionResource
	Subresource              string
	Namespace, Name          string
	Operation                admission.Operation
	Object, OldObject        runtime.Object
	Options                  runtime.Object
	DryRun                   bool
	User                     user.Info
	Equivalents              []schema.GroupVersionResource
	EquivalentKinds          []schema.GroupVersionKind
	OtherSubresource, Others int
}

func factsOf(a admission.Attributes, mapper runtime.EquivalentResourceMapper) facts {
	f := facts{
		Kind: a.GetKind(), Resource: a.GetResource(), Subresource: a.GetSubresource(), Namespace: a.GetNamespace(), Name: a.GetName(),
		Operation: a.GetOperation(), Object: a.GetObject(), OldObject: a.GetOldObject(), Options: a.GetOperationOptions(),
		DryRun: a.IsDryRun(), User: a.GetUserInfo(),
		Equivalents: mapper.EquivalentResourcesFor(a.GetResource(), a.GetSubresource()),
	}
	for _, resource := range f.Equivalents {
		f.EquivalentKinds = append(f.EquivalentKinds, mapper.KindFor(resource, a.GetSubresource()))
	}
	f.OtherSubresource = len(mapper.EquivalentResourcesFor(a.GetResource(), "another"))
	f.Others = len(mapper.EquivalentResourcesFor(schema.GroupVersionResource{Version: "v1", Resource: "others"}, a.GetSubresource()))
	return f
}

func TestAttributesRoundTrip(t *testing.T) {
	pod := func(name string) *core.Pod {
		return &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: core.PodSpec{SecurityContext: &core.PodSecurityContext{}}}
	}
	somebody := &user.DefaultInfo{Name: "somebody", UID: "1", Groups: []string{"g", "h"}, Extra: map[string][]string{"acme.com/project": {"p1", "p2"}}}
	deploymentKind := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	evictionKind := schema.GroupVersionKind{Group: "policy", Version: "v1", Kind: "Eviction"}
	execKind := schema.GroupVersionKind{Version: "v1", Kind: "PodExecOptions"}
	alone := runtime.NewEquivalentResourceRegistry()
	alone.RegisterKindFor(pods, "", podKind)
	several := runtime.NewEquivalentResourceRegistryWithIdentity(func(schema.GroupResource) string { return "same" })
	several.RegisterKindFor(deployments, "", deploymentKind)
	several.RegisterKindFor(schema.GroupVersionResource{Group: "extensions", Version: "v1beta1", Resource: "deployments"}, "",
		schema.GroupVersionKind{Group: "extensions", Version: "v1beta1", Kind: "Deployment"})

	for name, tc := range map[string]struct {
		attributes  admission.Attributes
		mapper      runtime.EquivalentResourceMapper
		encoded     bool
		equivalents int
	}{
		"create":                  {admission.NewAttributesRecord(pod("p"), nil, podKind, "ns", "p", pods, "", admission.Create, &metav1.CreateOptions{FieldManager: "m"}, false, somebody), alone, false, 0},
		"create without a name":   {admission.NewAttributesRecord(pod(""), nil, podKind, "ns", "", pods, "", admission.Create, &metav1.CreateOptions{}, true, somebody), alone, false, 0},
		"update":                  {admission.NewAttributesRecord(pod("new"), pod("old"), podKind, "ns", "p", pods, "status", admission.Update, &metav1.UpdateOptions{}, false, somebody), nil, false, 0},
		"delete":                  {admission.NewAttributesRecord(nil, pod("old"), podKind, "ns", "p", pods, "", admission.Delete, &metav1.DeleteOptions{}, false, somebody), nil, false, 0},
		"delete of a collection":  {admission.NewAttributesRecord(nil, pod("old"), podKind, "ns", "", pods, "", admission.Delete, &metav1.DeleteOptions{}, false, somebody), nil, false, 0},
		"connect":                 {admission.NewAttributesRecord(&core.PodExecOptions{Stdin: true, Command: []string{"\xff"}}, nil, execKind, "ns", "p", pods, "exec", admission.Connect, nil, false, somebody), nil, false, 0},
		"eviction":                {admission.NewAttributesRecord(&policy.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, nil, evictionKind, "ns", "p", pods, "eviction", admission.Create, &metav1.CreateOptions{}, false, somebody), nil, false, 0},
		"nobody and nothing":      {admission.NewAttributesRecord(nil, nil, podKind, "", "", pods, "", admission.Delete, nil, false, nil), nil, false, 0},
		"several resources":       {admission.NewAttributesRecord(nil, nil, deploymentKind, "ns", "d", deployments, "", admission.Delete, nil, false, somebody), several, false, 2},
		"a custom resource":       {admission.NewAttributesRecord(widget(), widget(), widgetKind, "ns", "w", widgets, "", admission.Update, &metav1.UpdateOptions{}, false, somebody), nil, false, 0},
		"a name that is no UTF-8": {admission.NewAttributesRecord(nil, pod("old"), podKind, "n s", "%\xff/é", pods, "", admission.Delete, nil, false, &user.DefaultInfo{Name: "\xfe"}), several, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			codec := convert.NewCodec()
			m, err := codec.EncodeAttributes(tc.attributes, tc.mapper)
			if err != nil {
				t.Fatal(err)
			}
			wire, err := proto.Marshal(m)
			if err != nil {
				t.Fatalf("the message cannot be sent: %v", err)
			}
			arrived := &admissionv1.Attributes{}
			if err := proto.Unmarshal(wire, arrived); err != nil {
				t.Fatal(err)
			}
			if arrived.GetPercentEncoded() != tc.encoded || len(arrived.GetEquivalents()) != tc.equivalents {
				t.Errorf("percent_encoded = %t with %d equivalents, want %t and %d", arrived.GetPercentEncoded(), len(arrived.GetEquivalents()), tc.encoded, tc.equivalents)
			}
			request, err := codec.DecodeAttributes("attributes", arrived)
			if err != nil {
				t.Fatal(err)
			}
			mapper := tc.mapper
			if len(arrived.GetEquivalents()) == 0 {
				// The resource stands alone.
				registry := runtime.NewEquivalentResourceRegistry()
				registry.RegisterKindFor(tc.attributes.GetResource(), tc.attributes.GetSubresource(), tc.attributes.GetKind())
				mapper = registry
			}
			want, got := factsOf(tc.attributes, mapper), factsOf(request, request.Equivalents)
			if !reflect.DeepEqual(want, got) {
				t.Errorf("the attributes changed (-want +got):\n%s", cmp.Diff(want, got))
			}
		})
	}
}

func TestUnusableAttributes(t *testing.T) {
	valid := func() *admissionv1.Attributes {
		return &admissionv1.Attributes{
			Operation: admissionv1.Operation_OPERATION_DELETE,
			Kind:      convert.ToKind(podKind),
			Resource:  convert.ToResource(pods),
		}
	}
	for name, tc := range map[string]struct {
		change func(*admissionv1.Attributes) *admissionv1.Attributes
		want   string
	}{
		"none":         {func(*admissionv1.Attributes) *admissionv1.Attributes { return nil }, "a: is required"},
		"no operation": {func(m *admissionv1.Attributes) *admissionv1.Attributes { m.Operation = 0; return m }, "a.operation: "},
		"no kind":      {func(m *admissionv1.Attributes) *admissionv1.Attributes { m.Kind = nil; return m }, "a.kind: "},
		"no resource":  {func(m *admissionv1.Attributes) *admissionv1.Attributes { m.Resource = nil; return m }, "a.resource: "},
		"a bad escape": {func(m *admissionv1.Attributes) *admissionv1.Attributes {
			m.PercentEncoded, m.Name = true, "%zz"
			return m
		}, "a.name: "},
		"a bad object": {func(m *admissionv1.Attributes) *admissionv1.Attributes { m.Object = &admissionv1.Object{}; return m }, "a.object.kind: "},
		"a bad old object": {func(m *admissionv1.Attributes) *admissionv1.Attributes {
			m.OldObject = &admissionv1.Object{}
			return m
		}, "a.old_object.kind: "},
		"options that are none": {func(m *admissionv1.Attributes) *admissionv1.Attributes {
			m.Options = &admissionv1.Object{Kind: convert.ToKind(podKind)}
			return m
		}, "a.options.kind: "},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := convert.NewCodec().DecodeAttributes("a", tc.change(valid()))
			e, ok := rpcerr.As(err)
			if !ok || e.Reason != rpcerr.ReasonInvalidArgument || !strings.HasPrefix(e.Error(), tc.want) {
				t.Errorf("DecodeAttributes() = %v, want an InvalidArgument %q", err, tc.want)
			}
		})
	}
}
