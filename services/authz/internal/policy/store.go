// Package policy reads the RBAC objects of the Kubernetes API and hands them to
// upstream's RBAC authorizer, so that a question costs what the asking user's own
// bindings cost, however many others there are. It knows exactly up to which change
// it has read, and tells of each change when it is in force.
//
// Upstream's code decides. What is here are the listers that it asks: they return
// only bindings that have a subject which matches the user. A View has it decide only
// one of several questions that are the same to it.
package policy

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
)

// Store has the policy, and implements the listers of upstream's RBAC authorizer.
// A context of NewEvaluation or WithUser makes them list what concerns the user;
// with any other they list everything. What they return must not be changed. It is
// safe for concurrent use. A Reader fills it.
type Store struct {
	clusterRoles        roles[*rbacv1.ClusterRole]
	clusterRoleBindings bindings[*rbacv1.ClusterRoleBinding]
	roles               roles[*rbacv1.Role]
	roleBindings        bindings[*rbacv1.RoleBinding]

	positions [resourceCount]atomic.Uint64

	// mu guards what follows, and that positions and what subscribers are told
	// change together.
	mu    sync.Mutex
	feeds [resourceCount]feedState
	// changed has the last change of each resource that is known.
	changed       Positions
	moved         chan struct{} // closed at the next change of a position; nil if nobody waits
	subscriptions map[*Subscription]struct{}
}

// feedState is how one resource is read.
type feedState struct {
	// listed is whether it was ever read whole.
	listed bool
	// watching is whether a watch is open.
	watching bool
	// current is whether it was read whole since a watch that has to begin with
	// everything was opened.
	current bool
}

var (
	_ validation.RoleGetter               = (*Store)(nil)
	_ validation.RoleBindingLister        = (*Store)(nil)
	_ validation.ClusterRoleGetter        = (*Store)(nil)
	_ validation.ClusterRoleBindingLister = (*Store)(nil)
)

// NewStore returns a store that has nothing yet.
func NewStore() *Store {
	return &Store{
		clusterRoles: roles[*rbacv1.ClusterRole]{rulesOf: func(r *rbacv1.ClusterRole) []rbacv1.PolicyRule { return r.Rules }},
		roles:        roles[*rbacv1.Role]{rulesOf: func(r *rbacv1.Role) []rbacv1.PolicyRule { return r.Rules }},
		clusterRoleBindings: bindings[*rbacv1.ClusterRoleBinding]{
			subjectsOf: func(b *rbacv1.ClusterRoleBinding) []rbacv1.Subject { return b.Subjects },
			only: func(b *rbacv1.ClusterRoleBinding, i int) *rbacv1.ClusterRoleBinding {
				one := *b
				one.Subjects = b.Subjects[i : i+1 : i+1]
				return &one
			},
		},
		roleBindings: bindings[*rbacv1.RoleBinding]{
			subjectsOf: func(b *rbacv1.RoleBinding) []rbacv1.Subject { return b.Subjects },
			only: func(b *rbacv1.RoleBinding, i int) *rbacv1.RoleBinding {
				one := *b
				one.Subjects = b.Subjects[i : i+1 : i+1]
				return &one
			},
		},
		subscriptions: map[*Subscription]struct{}{},
	}
}

// GetRole returns a role, or a NotFound error word for word as upstream's lister
// has it.
func (s *Store) GetRole(ctx context.Context, namespace, name string) (*rbacv1.Role, error) {
	role, ok := s.roles.get(evaluationFrom(ctx), namespace, name)
	if !ok {
		return nil, apierrors.NewNotFound(rbacv1.Resource("role"), name)
	}
	return role, nil
}

// GetClusterRole returns a cluster role, or a NotFound error word for word as
// upstream's lister has it.
func (s *Store) GetClusterRole(ctx context.Context, name string) (*rbacv1.ClusterRole, error) {
	role, ok := s.clusterRoles.get(evaluationFrom(ctx), "", name)
	if !ok {
		return nil, apierrors.NewNotFound(rbacv1.Resource("clusterrole"), name)
	}
	return role, nil
}

// ListRoleBindings returns the role bindings of a namespace, or of all if it is "",
// sorted by namespace and name. If ctx says which user, they are those that bind
// the user, each with only the first subject that does. It never fails.
func (s *Store) ListRoleBindings(ctx context.Context, namespace string) ([]*rbacv1.RoleBinding, error) {
	e := evaluationFrom(ctx)
	switch {
	case e == nil:
		return s.roleBindings.all(func(k key) bool { return namespace == "" || k.namespace == namespace }), nil
	case namespace == "":
		e.namespaceMattered = true
		return s.roleBindings.everywhere(e.user), nil
	}
	e.namespaceMattered = true
	return s.roleBindings.of(e.user, namespace), nil
}

// ListClusterRoleBindings returns the cluster role bindings, sorted by name. If ctx
// says which user, they are those that bind the user, each with only the first
// subject that does. It never fails.
func (s *Store) ListClusterRoleBindings(ctx context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	if e := evaluationFrom(ctx); e != nil {
		return s.clusterRoleBindings.of(e.user, ""), nil
	}
	return s.clusterRoleBindings.all(func(key) bool { return true }), nil
}

// Revision returns up to which changes the policy was read: all of them are in
// force.
func (s *Store) Revision() Positions {
	var p Positions
	for resource := range p {
		p[resource] = s.positions[resource].Load()
	}
	return p
}

// Synced reports whether each resource was read whole at least once.
func (s *Store) Synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, feed := range s.feeds {
		if !feed.listed {
			return false
		}
	}
	return true
}

// Following reports whether changes come in as they happen: the watches of all
// resources are open. One that ends and is opened again interrupts it for a moment.
func (s *Store) Following() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.followingLocked()
}

func (s *Store) followingLocked() bool {
	for _, feed := range s.feeds {
		if !feed.watching || !feed.current {
			return false
		}
	}
	return true
}

// Wait returns nil when the policy was read at least as far, or the cause for which
// ctx has ended.
func (s *Store) Wait(ctx context.Context, atLeast Positions) error {
	for !s.Revision().Reached(atLeast) {
		s.mu.Lock()
		if s.moved == nil {
			s.moved = make(chan struct{})
		}
		moved := s.moved
		s.mu.Unlock()
		// What happened before the channel was there does not close it.
		if s.Revision().Reached(atLeast) {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// advance says that what changed up to a position is in force.
func (s *Store) advance(resource Resource, position uint64, namespaces ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// An object that was read already (a watch that begins earlier) takes nothing back.
	s.positions[resource].Store(max(position, s.positions[resource].Load()))
	if len(namespaces) > 0 {
		s.changed[resource] = max(position, s.changed[resource])
	}
	for subscription := range s.subscriptions {
		for _, namespace := range namespaces {
			subscription.addLocked(namespace, resource, position)
		}
	}
	s.wakeWaitingLocked()
}

// restart says that a resource was read whole. If that is not the first time and
// something is not what it was, all subscribers have to begin anew: when it changed is
// not known, and the position of the list is one that other replicas reach late, if
// they have missed nothing. So they do if the position goes back (etcd was restored
// from a backup), and what they have been told has another meaning now.
//
// The last change is that of the newest object, for all that the first list tells. What
// a later one has not any more may have gone as late as the list was made.
func (s *Store) restart(resource Resource, position, newest uint64, differs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	anew := !s.feeds[resource].listed || position < s.positions[resource].Load()
	if anew {
		s.changed[resource] = newest
	} else if differs {
		s.changed[resource] = position
	}
	if s.feeds[resource].listed && (anew || differs) {
		for subscription := range s.subscriptions {
			subscription.loseLocked()
		}
	}
	s.positions[resource].Store(position)
	s.wakeWaitingLocked()
	s.setFeedLocked(resource, func(feed *feedState) { feed.listed, feed.current = true, true })
}

func (s *Store) wakeWaitingLocked() {
	if s.moved != nil {
		close(s.moved)
		s.moved = nil
	}
}

// setFeed changes how a resource is read.
func (s *Store) setFeed(resource Resource, change func(*feedState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setFeedLocked(resource, change)
}

func (s *Store) setFeedLocked(resource Resource, change func(*feedState)) {
	before := s.followingLocked()
	change(&s.feeds[resource])
	if s.followingLocked() != before {
		for subscription := range s.subscriptions {
			subscription.wakeLocked()
		}
	}
}

// index is what has the objects of one resource.
type index[T object] interface {
	put(T)
	remove(T)
	// replace reports whether something is not what it was.
	replace([]T) bool
}

// feed is where a reflector puts what it reads of one resource. Objects are in
// force before their position is told.
type feed[T object] struct {
	store    *Store
	resource Resource
	index    index[T]
}

var (
	_ cache.ReflectorStore         = (*feed[*rbacv1.Role])(nil)
	_ cache.ResourceVersionUpdater = (*feed[*rbacv1.Role])(nil)
)

// Add adds an object.
func (f *feed[T]) Add(obj any) error { return f.Update(obj) }

// Update adds or replaces an object.
func (f *feed[T]) Update(obj any) error {
	o, err := f.read(obj)
	if err != nil {
		return err
	}
	f.index.put(o)
	f.store.advance(f.resource, positionOf(o.GetResourceVersion()), o.GetNamespace())
	return nil
}

// Delete removes an object, which comes with the resourceVersion of its deletion.
func (f *feed[T]) Delete(obj any) error {
	o, err := f.read(obj)
	if err != nil {
		return err
	}
	f.index.remove(o)
	f.store.advance(f.resource, positionOf(o.GetResourceVersion()), o.GetNamespace())
	return nil
}

// Replace makes a list all that there is.
func (f *feed[T]) Replace(list []any, resourceVersion string) error {
	all, newest := make([]T, 0, len(list)), uint64(0)
	for _, obj := range list {
		o, err := f.read(obj)
		if err != nil {
			return err
		}
		all, newest = append(all, o), max(newest, positionOf(o.GetResourceVersion()))
	}
	f.store.restart(f.resource, positionOf(resourceVersion), newest, f.index.replace(all))
	return nil
}

// Resync does nothing.
func (f *feed[T]) Resync() error { return nil }

// UpdateResourceVersion says up to where has been read; after an object, or by a
// bookmark.
func (f *feed[T]) UpdateResourceVersion(resourceVersion string) {
	f.store.advance(f.resource, positionOf(resourceVersion))
}

// read drops what nothing here looks at, and may be most of an object.
func (f *feed[T]) read(obj any) (T, error) {
	o, ok := obj.(T)
	if !ok {
		return o, fmt.Errorf("got a %T among %s", obj, f.resource)
	}
	o.SetManagedFields(nil)
	o.SetAnnotations(nil)
	return o, nil
}

// positionOf reads a resourceVersion. Those of the Kubernetes API are numbers; what
// is none is before everything, so that nothing is taken for read that was not.
func positionOf(resourceVersion string) uint64 {
	position, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return position
}
