package server

import (
	"sync"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
)

// memory is what the authorizers have said of one user since a batch came, by what all
// questions have in common of which they say the same. It is for one goroutine, and
// has no more entries than the batch has questions.
type memory[T any] struct {
	// everywhere has the answers that hold in all namespaces, and here the others.
	everywhere map[kind]T
	here       map[placed]T
}

// memories are memories of batches that have ended, so that the next ones need not grow
// their own. It is safe for concurrent use.
type memories struct{ pool sync.Pool }

// maxKept is how many entries a memory may have that is used again: emptying it takes as
// long as it was large.
const maxKept = 128

func (p *memories) get() *memory[uint32] {
	if m, ok := p.pool.Get().(*memory[uint32]); ok {
		return m
	}
	return &memory[uint32]{}
}

func (p *memories) put(m *memory[uint32]) {
	if len(m.everywhere)+len(m.here) <= maxKept {
		clear(m.everywhere)
		clear(m.here)
		p.pool.Put(m)
	}
}

// kind is what is the same in all questions that one answer is good for.
type kind struct{ verb, apiGroup, apiVersion, resource, subresource string }

// placed is a kind in a namespace.
type placed struct {
	kind
	namespace string
}

func kindOf(a *authorizer.AttributesRecord) kind {
	return kind{verb: a.Verb, apiGroup: a.APIGroup, apiVersion: a.APIVersion, resource: a.Resource, subresource: a.Subresource}
}

// find returns what was said of a question with another name, or also in another
// namespace, if that holds for this one.
func (m *memory[T]) find(a *authorizer.AttributesRecord) (T, bool) {
	var none T
	if !reusable(a) {
		return none, false
	}
	k := kindOf(a)
	if told, ok := m.everywhere[k]; ok {
		return told, true
	}
	told, ok := m.here[placed{kind: k, namespace: a.Namespace}]
	return told, ok
}

// keep remembers what was said of a question, and answers others as far as reuse says.
func (m *memory[T]) keep(a *authorizer.AttributesRecord, reuse authzv1.Reuse, told T) {
	if !reusable(a) {
		return
	}
	switch reuse {
	case authzv1.Reuse_REUSE_ANY_NAME:
		if m.here == nil {
			m.here = map[placed]T{}
		}
		m.here[placed{kind: kindOf(a), namespace: a.Namespace}] = told
	case authzv1.Reuse_REUSE_ANY_NAMESPACE:
		if m.everywhere == nil {
			m.everywhere = map[kind]T{}
		}
		m.everywhere[kindOf(a)] = told
	}
}

// reusable reports whether what is said of a question may hold for others: selectors
// are beyond what an answer says of itself.
func reusable(a *authorizer.AttributesRecord) bool {
	return a.ResourceRequest && a.FieldSelectorRequirements == nil && a.FieldSelectorParsingErr == nil &&
		a.LabelSelectorRequirements == nil && a.LabelSelectorParsingErr == nil
}
