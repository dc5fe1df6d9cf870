package convert

import (
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
)

// planner knows for each type what to look at, so that an object is not walked
// where nothing can be found. It is safe for concurrent use.
type planner struct {
	// marked returns whether a field of a struct is looked for. Nil: none is.
	marked func(reflect.StructField) bool
	// wanted returns whether a type is looked for, wherever it is.
	wanted func(reflect.Type) bool
	// plans has the plan of each type, by reflect.Type.
	plans sync.Map
}

// plan says what to look at in a type. A nil plan: at nothing.
type plan struct {
	// wanted is whether the type itself is looked for.
	wanted bool
	// fields are a struct's, elem is a pointer's, a list's or a map's.
	fields []fieldPlan
	elem   *plan
}

// fieldPlan says what to look at in a field of a struct.
type fieldPlan struct {
	index int
	// name is the field's in JSON, or "" if its fields are its struct's.
	name string
	// marked is whether the field itself is looked for.
	marked bool
	// inner is the plan of the field's type.
	inner *plan
}

// of returns an object's struct and the plan for it, which is nil if there is
// nothing to look at.
func (p *planner) of(obj runtime.Object) (*plan, reflect.Value) {
	v := reflect.ValueOf(obj)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return nil, v
	}
	t := v.Type().Elem()
	known, ok := p.plans.Load(t)
	if !ok {
		known, _ = p.plans.LoadOrStore(t, p.planOf(t, map[reflect.Type]*plan{}))
	}
	return known.(*plan), v.Elem()
}

// planOf returns the plan of a type, or nil. Types that contain themselves
// (JSON schemas) have a plan that does.
func (p *planner) planOf(t reflect.Type, known map[reflect.Type]*plan) *plan {
	if found, ok := known[t]; ok {
		return found
	}
	made := &plan{wanted: p.wanted(t)}
	known[t] = made
	if made.wanted {
		return made
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		made.elem = p.planOf(t.Elem(), known)
		if made.elem != nil {
			return made
		}
	case reflect.Struct:
		for i := range t.NumField() {
			field := t.Field(i)
			if !field.IsExported() {
				continue
			}
			fp := fieldPlan{index: i, name: jsonName(field), inner: p.planOf(field.Type, known)}
			fp.marked = p.marked != nil && p.marked(field)
			if fp.marked || fp.inner != nil {
				made.fields = append(made.fields, fp)
			}
		}
		if len(made.fields) > 0 {
			return made
		}
	}
	known[t] = nil
	return nil
}
