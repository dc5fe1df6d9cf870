package convert

import (
	"reflect"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
)

// emptiesFinder finds what protobuf cannot say of an object and JSON can: a
// list or a map that is there, but empty. Protobuf makes nil of it, which is
// the same to Kubernetes unless the field is not omitted from JSON when empty.
// Then webhooks and CEL see `[]` of the one and `null` of the other (the rules
// of a Role, the endpoints of an EndpointSlice).
//
// It knows for each type which fields to look at, so that an object is not
// walked where nothing can be found. It is safe for concurrent use.
type emptiesFinder struct {
	// plans has the plan of each type, by reflect.Type.
	plans sync.Map
}

// plan says what to look at in a type. A nil plan: at nothing.
type plan struct {
	// fields are a struct's, elem is a pointer's, a list's or a map's.
	fields []fieldPlan
	elem   *plan
}

// fieldPlan says what to look at in a field of a struct.
type fieldPlan struct {
	index int
	// must is whether the field itself may not be empty without being nil.
	must bool
	// inner is the plan of the field's type.
	inner *plan
}

// In returns whether there is such an empty list or map in the object.
func (f *emptiesFinder) In(obj runtime.Object) bool {
	v := reflect.ValueOf(obj)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return false
	}
	t := v.Type().Elem()
	p, ok := f.plans.Load(t)
	if !ok {
		p, _ = f.plans.LoadOrStore(t, planOf(t, map[reflect.Type]*plan{}))
	}
	return p.(*plan).found(v.Elem())
}

func (p *plan) found(v reflect.Value) bool {
	if p == nil {
		return false
	}
	switch v.Kind() {
	case reflect.Pointer:
		return !v.IsNil() && p.elem.found(v.Elem())
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if p.elem.found(v.Index(i)) {
				return true
			}
		}
	case reflect.Map:
		for entries := v.MapRange(); entries.Next(); {
			if p.elem.found(entries.Value()) {
				return true
			}
		}
	case reflect.Struct:
		for _, field := range p.fields {
			value := v.Field(field.index)
			if field.must && !value.IsNil() && value.Len() == 0 || field.inner.found(value) {
				return true
			}
		}
	}
	return false
}

// planOf returns the plan of a type, or nil. Types that contain themselves
// (JSON schemas) have a plan that does.
func planOf(t reflect.Type, known map[reflect.Type]*plan) *plan {
	if p, ok := known[t]; ok {
		return p
	}
	p := &plan{}
	known[t] = p
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		p.elem = planOf(t.Elem(), known)
		if p.elem != nil {
			return p
		}
	case reflect.Struct:
		for i := range t.NumField() {
			field := t.Field(i)
			if !field.IsExported() {
				continue
			}
			fp := fieldPlan{index: i, must: neverOmitted(field), inner: planOf(field.Type, known)}
			if fp.must || fp.inner != nil {
				p.fields = append(p.fields, fp)
			}
		}
		if len(p.fields) > 0 {
			return p
		}
	}
	known[t] = nil
	return nil
}

// neverOmitted returns whether a field is a list or a map that JSON shows even
// if it is empty. Bytes are a string to JSON, and protobuf tells nil from empty.
func neverOmitted(field reflect.StructField) bool {
	switch {
	case field.Type.Kind() == reflect.Map:
	case field.Type.Kind() == reflect.Slice && field.Type.Elem().Kind() != reflect.Uint8:
	default:
		return false
	}
	tag := field.Tag.Get("json")
	return tag != "-" && !strings.Contains(tag, "omit") && !strings.Contains(tag, "inline")
}
