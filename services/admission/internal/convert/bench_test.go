package convert_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/trigate/trigate/services/admission/internal/convert"
)

func benchmarkPod() *core.Pod {
	pod := &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", Labels: map[string]string{"a": "b", "c": "d"}}}
	pod.Spec.SecurityContext = &core.PodSecurityContext{}
	for i := range 3 {
		container := core.Container{Name: fmt.Sprint("c", i), Image: "registry.example.com/image:tag", Command: []string{"run", "--flag=value"}}
		for j := range 10 {
			container.Env = append(container.Env, core.EnvVar{Name: fmt.Sprint("VARIABLE_", j), Value: "some value"})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, container)
	}
	return pod
}

// BenchmarkAttributes is the encoding of a request and its decoding.
func BenchmarkAttributes(b *testing.B) {
	somebody := &user.DefaultInfo{Name: "somebody", Groups: []string{"system:authenticated"}}
	for name, bc := range map[string]struct {
		object   runtime.Object
		kind     schema.GroupVersionKind
		resource schema.GroupVersionResource
	}{
		"pod":    {benchmarkPod(), podKind, pods},
		"custom": {widget(), widgetKind, widgets},
	} {
		codec := convert.NewCodec()
		attributes := admission.NewAttributesRecord(bc.object, nil, bc.kind, "ns", "n", bc.resource, "", admission.Create, &metav1.CreateOptions{}, false, somebody)
		m, err := codec.EncodeAttributes(attributes, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name+"/encode", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := codec.EncodeAttributes(attributes, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/decode", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := codec.DecodeAttributes("attributes", m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
