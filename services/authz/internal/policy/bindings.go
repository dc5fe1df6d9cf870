package policy

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
)

// bindings has bindings by namespace and subject. It is safe for concurrent use.
// The slices in it are never changed, only replaced, so that readers keep them
// without the lock.
type bindings[T object] struct {
	subjectsOf func(T) []rbacv1.Subject
	// only returns a copy of a binding that has only one of its subjects.
	only func(T, int) T

	// mu guards what follows.
	mu         sync.RWMutex
	byKey      map[key]T
	bySubject  map[subject]hits[T]
	namespaces map[string]int // how many bindings each has
}

// subject is whom a binding binds in a namespace: a user, by the name that a
// service account has too, or a group.
type subject struct {
	namespace string
	group     bool
	name      string
}

// hits are the bindings of one subject, sorted by name, as parallel slices. Each
// binding has this subject only, and places has the place of it in the binding.
type hits[T object] struct {
	bindings []T
	places   []int
}

// subjects returns whom a binding binds, each with its first place in the binding.
func (b *bindings[T]) subjects(binding T) map[subject]int {
	namespace := binding.GetNamespace()
	all := b.subjectsOf(binding)
	places := make(map[subject]int, len(all))
	for place, s := range all {
		bound, ok := subjectOf(namespace, s)
		if _, known := places[bound]; ok && !known {
			places[bound] = place
		}
	}
	return places
}

// subjectOf returns whom a subject of a binding stands for, as upstream's
// appliesToUser has it, and false if that is nobody.
func subjectOf(namespace string, s rbacv1.Subject) (subject, bool) {
	switch s.Kind {
	case rbacv1.UserKind:
		return subject{namespace: namespace, name: s.Name}, true
	case rbacv1.GroupKind:
		return subject{namespace: namespace, group: true, name: s.Name}, true
	case rbacv1.ServiceAccountKind:
		of := cmp.Or(s.Namespace, namespace)
		if of == "" {
			return subject{}, false
		}
		return subject{namespace: namespace, name: serviceaccount.MakeUsername(of, s.Name)}, true
	}
	return subject{}, false
}

// of returns a namespace's bindings for a user, each with only the subject by
// which it binds the user: the first of those that do. The caller must not change
// the slice.
func (b *bindings[T]) of(u user.Info, namespace string) []T {
	var room [8]hits[T]
	found := room[:0]
	b.mu.RLock()
	if h, ok := b.bySubject[subject{namespace: namespace, name: u.GetName()}]; ok {
		found = append(found, h)
	}
	for _, group := range u.GetGroups() {
		if h, ok := b.bySubject[subject{namespace: namespace, group: true, name: group}]; ok {
			found = append(found, h)
		}
	}
	b.mu.RUnlock()
	switch len(found) {
	case 0:
		return nil
	case 1:
		return found[0].bindings
	}
	return merge(found)
}

// merge joins sorted bindings. Of a binding that is in several, the copy with the
// first place counts.
func merge[T object](found []hits[T]) []T {
	total := 0
	for _, h := range found {
		total += len(h.bindings)
	}
	merged := make([]T, 0, total)
	for {
		next := -1
		for i := range found {
			if len(found[i].bindings) > 0 && (next < 0 || before(found[i], found[next])) {
				next = i
			}
		}
		if next < 0 {
			return merged
		}
		binding := found[next].bindings[0]
		found[next].bindings, found[next].places = found[next].bindings[1:], found[next].places[1:]
		if last := len(merged) - 1; last < 0 || merged[last].GetName() != binding.GetName() {
			merged = append(merged, binding)
		}
	}
}

func before[T object](a, b hits[T]) bool {
	aName, bName := a.bindings[0].GetName(), b.bindings[0].GetName()
	return aName < bName || aName == bName && a.places[0] < b.places[0]
}

// everywhere returns the bindings of a user in every namespace, as of does for
// one, sorted by namespace.
func (b *bindings[T]) everywhere(u user.Info) []T {
	b.mu.RLock()
	namespaces := sortedKeys(b.namespaces)
	b.mu.RUnlock()
	var all []T
	for _, namespace := range namespaces {
		all = append(all, b.of(u, namespace)...)
	}
	return all
}

// all returns the bindings for which keep returns true, whole, sorted by namespace
// and name.
func (b *bindings[T]) all(keep func(key) bool) []T {
	var all []T
	b.mu.RLock()
	for k, binding := range b.byKey {
		if keep(k) {
			all = append(all, binding)
		}
	}
	b.mu.RUnlock()
	slices.SortFunc(all, func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return all
}

func (b *bindings[T]) put(binding T) {
	k, places := keyOf(binding), b.subjects(binding)
	copies := make(map[subject]T, len(places))
	for bound, place := range places {
		copies[bound] = b.copyFor(binding, place)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	old, replaces := b.byKey[k]
	if replaces {
		for bound := range b.subjects(old) {
			if _, stays := places[bound]; !stays {
				b.unbindLocked(bound, k.name)
			}
		}
	} else {
		b.initLocked()
		b.namespaces[k.namespace]++
	}
	b.byKey[k] = binding
	for bound, copied := range copies {
		b.bindLocked(bound, places[bound], copied)
	}
}

func (b *bindings[T]) remove(binding T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := keyOf(binding)
	old, ok := b.byKey[k]
	if !ok {
		return
	}
	for bound := range b.subjects(old) {
		b.unbindLocked(bound, k.name)
	}
	delete(b.byKey, k)
	if b.namespaces[k.namespace]--; b.namespaces[k.namespace] == 0 {
		delete(b.namespaces, k.namespace)
	}
}

func (b *bindings[T]) replace(all []T) bool {
	fresh := &bindings[T]{subjectsOf: b.subjectsOf, only: b.only}
	fresh.initLocked()
	// Sorted, so that each binding goes to the end of its subjects' hits.
	slices.SortFunc(all, func(a, b T) int { return cmp.Compare(a.GetName(), b.GetName()) })
	for _, binding := range all {
		k := keyOf(binding)
		fresh.byKey[k] = binding
		fresh.namespaces[k.namespace]++
		for bound, place := range fresh.subjects(binding) {
			h := fresh.bySubject[bound]
			h.bindings = append(h.bindings, fresh.copyFor(binding, place))
			h.places = append(h.places, place)
			fresh.bySubject[bound] = h
		}
	}
	b.mu.Lock()
	old := b.byKey
	b.byKey, b.bySubject, b.namespaces = fresh.byKey, fresh.bySubject, fresh.namespaces
	b.mu.Unlock()
	return differ(old, fresh.byKey, func(binding T) T { return binding })
}

func (b *bindings[T]) initLocked() {
	if b.byKey == nil {
		b.byKey, b.bySubject, b.namespaces = map[key]T{}, map[subject]hits[T]{}, map[string]int{}
	}
}

// copyFor returns the binding with one subject only.
func (b *bindings[T]) copyFor(binding T, place int) T {
	if len(b.subjectsOf(binding)) == 1 {
		return binding
	}
	return b.only(binding, place)
}

func (b *bindings[T]) bindLocked(bound subject, place int, binding T) {
	old := b.bySubject[bound]
	i, replaces := old.search(binding.GetName())
	fresh := hits[T]{bindings: slices.Clone(old.bindings), places: slices.Clone(old.places)}
	if replaces {
		fresh.bindings[i], fresh.places[i] = binding, place
	} else {
		fresh.bindings, fresh.places = slices.Insert(fresh.bindings, i, binding), slices.Insert(fresh.places, i, place)
	}
	b.bySubject[bound] = fresh
}

func (b *bindings[T]) unbindLocked(bound subject, name string) {
	old := b.bySubject[bound]
	i, ok := old.search(name)
	switch {
	case !ok:
	case len(old.bindings) == 1:
		delete(b.bySubject, bound)
	default:
		b.bySubject[bound] = hits[T]{
			bindings: slices.Delete(slices.Clone(old.bindings), i, i+1),
			places:   slices.Delete(slices.Clone(old.places), i, i+1),
		}
	}
}

func (h hits[T]) search(name string) (int, bool) {
	return slices.BinarySearchFunc(h.bindings, name, func(binding T, name string) int {
		return cmp.Compare(binding.GetName(), name)
	})
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
