package convert

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// fractions carries what every encoding of an object drops: the fractions of a
// second of its times. An object that a handler holds has them where the API
// server has just set a time (managed fields), or where JSON from a client had
// one. A plugin takes an object without them for a changed one.
type fractions struct{ planner planner }

func newFractions() *fractions {
	return &fractions{planner{wanted: func(t reflect.Type) bool { return t == reflect.TypeFor[metav1.Time]() }}}
}

// of returns the fractions of an object's times.
func (f *fractions) of(obj runtime.Object) []*admissionv1.TimeFraction {
	var found []*admissionv1.TimeFraction
	p, v := f.planner.of(obj)
	p.eachTime(v, nil, func(t metav1.Time, path *fieldPath) metav1.Time {
		if nanos := t.Nanosecond(); nanos != 0 {
			found = append(found, &admissionv1.TimeFraction{Field: path.String(), Nanos: int32(nanos)})
		}
		return t
	})
	return found
}

// sameFraction returns whether two fractions say the same.
func sameFraction(a, b *admissionv1.TimeFraction) bool {
	return a.GetField() == b.GetField() && a.GetNanos() == b.GetNanos()
}

// restore adds the fractions to an object's times. The field is where they are
// in the request.
func (f *fractions) restore(field string, obj runtime.Object, m []*admissionv1.TimeFraction) error {
	if len(m) == 0 {
		return nil
	}
	missing := map[string]time.Duration{}
	for i, fraction := range m {
		if nanos := fraction.GetNanos(); nanos <= 0 || time.Duration(nanos) >= time.Second {
			return rpcerr.InvalidArgument(fmt.Sprintf("%s[%d].nanos", field, i), "%d is no fraction of a second", nanos)
		}
		missing[fraction.GetField()] = time.Duration(fraction.GetNanos())
	}
	p, v := f.planner.of(obj)
	p.eachTime(v, nil, func(t metav1.Time, path *fieldPath) metav1.Time {
		name := path.String()
		fraction, ok := missing[name]
		if !ok {
			return t
		}
		delete(missing, name)
		return metav1.Time{Time: t.Add(fraction)}
	})
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		return rpcerr.InvalidArgument(field, "the object has no time at %q", name)
	}
	return nil
}

// eachTime has visit see the times that are there, in an order that only their
// places decide. It returns what each is to be; of the same nothing is written.
func (p *plan) eachTime(v reflect.Value, path *fieldPath, visit func(metav1.Time, *fieldPath) metav1.Time) {
	if p == nil {
		return
	}
	if p.wanted {
		before := v.Interface().(metav1.Time)
		if after := visit(before, path); after != before {
			v.Set(reflect.ValueOf(after))
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			p.elem.eachTime(v.Elem(), path, visit)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			p.elem.eachTime(v.Index(i), &fieldPath{parent: path, key: strconv.Itoa(i)}, visit)
		}
	case reflect.Map:
		p.eachTimeOfMap(v, path, visit)
	case reflect.Struct:
		for _, field := range p.fields {
			here := path
			if field.name != "" {
				here = &fieldPath{parent: path, name: field.name}
			}
			field.inner.eachTime(v.Field(field.index), here, visit)
		}
	}
}

// eachTimeOfMap looks at copies, since what is in a map cannot be set.
func (p *plan) eachTimeOfMap(v reflect.Value, path *fieldPath, visit func(metav1.Time, *fieldPath) metav1.Time) {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	for _, key := range keys {
		changed := false
		value := reflect.New(v.Type().Elem()).Elem()
		value.Set(v.MapIndex(key))
		here := &fieldPath{parent: path, key: strconv.QuoteToASCII(key.String())}
		p.elem.eachTime(value, here, func(t metav1.Time, path *fieldPath) metav1.Time {
			after := visit(t, path)
			changed = changed || after != t
			return after
		})
		if changed {
			v.SetMapIndex(key, value)
		}
	}
}

// jsonName returns a field's name in JSON, or "" if its fields are its struct's.
func jsonName(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return name
}

// fieldPath is the path of a field from the inside out; only those that are
// needed become text. It ends with a name, or with the key of a list or a map.
type fieldPath struct {
	parent    *fieldPath
	name, key string
}

// String returns the path in JSON notation.
func (p *fieldPath) String() string {
	switch {
	case p == nil:
		return ""
	case p.name == "":
		return p.parent.String() + "[" + p.key + "]"
	case p.parent == nil:
		return p.name
	}
	return p.parent.String() + "." + p.name
}
