package convert

import (
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// emptiesFinder finds what protobuf cannot say of an object and JSON can: a
// list or a map that is there, but empty. Protobuf makes nil of it, which is
// the same to Kubernetes unless the field is not omitted from JSON when empty.
// Then webhooks and CEL see `[]` of the one and `null` of the other (the rules
// of a Role, the endpoints of an EndpointSlice). Of bytes in a list or a map it is
// the other way round: protobuf makes `""` of `null` (the data of a Secret).
type emptiesFinder struct{ planner planner }

func newEmptiesFinder() *emptiesFinder {
	return &emptiesFinder{planner{marked: neverOmitted, wanted: isBytes}}
}

// In returns whether there is such an empty value in the object.
func (f *emptiesFinder) In(obj runtime.Object) bool {
	p, v := f.planner.of(obj)
	return p.hasEmpty(v)
}

func (p *plan) hasEmpty(v reflect.Value) bool {
	if p == nil {
		return false
	}
	if p.wanted {
		return v.IsNil()
	}
	switch v.Kind() {
	case reflect.Pointer:
		return !v.IsNil() && p.elem.hasEmpty(v.Elem())
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if p.elem.hasEmpty(v.Index(i)) {
				return true
			}
		}
	case reflect.Map:
		for entries := v.MapRange(); entries.Next(); {
			if p.elem.hasEmpty(entries.Value()) {
				return true
			}
		}
	case reflect.Struct:
		for _, field := range p.fields {
			value := v.Field(field.index)
			if field.marked && !value.IsNil() && value.Len() == 0 {
				return true
			}
			if isBytes(value.Type()) {
				continue // protobuf tells nil from empty in a field
			}
			if field.inner.hasEmpty(value) {
				return true
			}
		}
	}
	return false
}

// isBytes returns whether a type is a string in JSON, and no list.
func isBytes(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8
}

// neverOmitted returns whether a field is a list or a map that JSON shows even
// if it is empty.
func neverOmitted(field reflect.StructField) bool {
	if kind := field.Type.Kind(); isBytes(field.Type) || kind != reflect.Map && kind != reflect.Slice {
		return false
	}
	tag := field.Tag.Get("json")
	return tag != "-" && !strings.Contains(tag, "omit") && !strings.Contains(tag, "inline")
}
