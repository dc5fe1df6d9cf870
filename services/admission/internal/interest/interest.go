// Package interest knows on what the plugins of the chain could act at the moment: by a
// table of what each plugin acts on, and by the webhooks, policies and quotas of the
// Kubernetes API. It says more than they act on where it has to, and never less.
package interest

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
)

const (
	// maxBreak is for how long a watch may have ended without anything being missed that
	// matters: one that ends in the ordinary way is back within milliseconds.
	maxBreak = time.Second
	// catchUp is for how long a watch that was away for longer has to be open before its
	// changes are taken to have come in.
	catchUp = time.Second
)

// maxSize bounds the message, in bytes. What is larger becomes everything.
const maxSize = 1 << 20

// Resource is one of the resources that interest depends on.
type Resource int

// The resources, in the order of Positions.
const (
	// MutatingWebhooks is mutatingwebhookconfigurations.
	MutatingWebhooks Resource = iota
	// ValidatingWebhooks is validatingwebhookconfigurations.
	ValidatingWebhooks
	// MutatingPolicies is mutatingadmissionpolicies.
	MutatingPolicies
	// ValidatingPolicies is validatingadmissionpolicies.
	ValidatingPolicies
	// Quotas is resourcequotas, of all namespaces.
	Quotas

	resourceCount = int(Quotas) + 1
)

// String returns the resource's name in the Kubernetes API.
func (r Resource) String() string {
	return [...]string{
		"mutatingwebhookconfigurations", "validatingwebhookconfigurations",
		"mutatingadmissionpolicies", "validatingadmissionpolicies", "resourcequotas",
	}[r]
}

// Positions says for each resource up to which resourceVersion it was read. Zero is
// before everything, and Unread is for what nobody reads.
type Positions [resourceCount]uint64

// Unread is the position of a resource that no plugin acts by.
const Unread = math.MaxUint64

// Update is what is of interest now.
type Update struct {
	// Interest must not be changed.
	Interest *admissionv1.Interest
	// Version counts the changes of Interest.
	Version uint64
	// Position is up to where the resources were read. All changes up to it are in.
	Position Positions
	// Changed has the last object of each resource that was read.
	Changed Positions
	// Following is whether changes come in as they happen.
	Following bool
}

// Hub has what is of interest. It is safe for concurrent use. A Reader fills it.
type Hub struct {
	static *static

	mu      sync.Mutex
	feeds   [resourceCount]feedState
	objects [resourceCount]map[key][]*admissionv1.InterestRule
	// version counts the changes; built is the interest of version builtAt.
	version, builtAt uint64
	built            *admissionv1.Interest
	subscribers      map[chan<- struct{}]struct{}
}

// key names an object of a resource.
type key struct{ namespace, name string }

// feedState is how one resource is read.
type feedState struct {
	// listed is whether it was ever read whole.
	listed bool
	// watching is whether a watch is open.
	watching bool
	// current is whether it was read whole since a watch that has to begin with
	// everything was opened.
	current bool
	// position is up to where it was read, and changed the last object in it.
	position, changed uint64
	// ended is when the last watch did, and caughtUp when what was missed since then has
	// come in.
	ended, caughtUp time.Time
}

// open takes note of a watch.
func (f *feedState) open(everything bool, now time.Time) {
	f.watching, f.current = true, f.current && !everything
	if !f.ended.IsZero() && now.Sub(f.ended) > maxBreak {
		f.caughtUp = now.Add(catchUp)
	}
}

// end takes note of the end of a watch.
func (f *feedState) end(now time.Time) {
	if f.watching {
		f.watching, f.ended = false, now
	}
}

// New returns a hub that has read nothing yet.
func New(cfg Config) (*Hub, error) {
	s, err := newStatic(cfg)
	if err != nil {
		return nil, err
	}
	h := &Hub{static: s, version: 1, subscribers: map[chan<- struct{}]struct{}{}}
	for resource := range h.objects {
		h.objects[resource] = map[key][]*admissionv1.InterestRule{}
	}
	return h, nil
}

// Subscribe returns a channel that has an element whenever Current may say something
// new, until the caller calls end.
func (h *Hub) Subscribe() (wake <-chan struct{}, end func()) {
	c := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.subscribers[c] = struct{}{}
	return c, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.subscribers, c)
	}
}

// Current returns what is of interest now.
func (h *Hub) Current() Update {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.builtAt != h.version {
		h.built, h.builtAt = h.buildLocked(), h.version
	}
	update := Update{Interest: h.built, Version: h.version, Following: h.followingLocked()}
	for resource, feed := range h.feeds {
		update.Position[resource], update.Changed[resource] = feed.position, feed.changed
		if !h.static.reads[resource] {
			update.Position[resource] = Unread
		}
	}
	return update
}

// Synced reports whether each resource was read whole at least once.
func (h *Hub) Synced() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.allLocked(func(feed feedState) bool { return feed.listed })
}

func (h *Hub) followingLocked() bool {
	now := time.Now()
	return h.allLocked(func(feed feedState) bool { return feed.watching && feed.current && !now.Before(feed.caughtUp) })
}

func (h *Hub) allLocked(holds func(feedState) bool) bool {
	for resource, feed := range h.feeds {
		if h.static.reads[resource] && !holds(feed) {
			return false
		}
	}
	return true
}

func (h *Hub) buildLocked() *admissionv1.Interest {
	interest := &admissionv1.Interest{
		NamespaceLifecycle: h.static.lifecycle,
		Mutating:           slices.Concat(h.static.mutating, h.rulesLocked(MutatingPolicies), h.rulesLocked(MutatingWebhooks)),
		Validating:         slices.Concat(h.static.validating, h.rulesLocked(ValidatingPolicies), h.rulesLocked(ValidatingWebhooks), h.quotaLocked()),
	}
	if proto.Size(interest) <= maxSize {
		return interest
	}
	const tooMuch = "too much to tell"
	return &admissionv1.Interest{
		NamespaceLifecycle: h.static.lifecycle,
		Mutating:           []*admissionv1.InterestRule{everything("", tooMuch)},
		Validating:         []*admissionv1.InterestRule{everything("", tooMuch)},
	}
}

// rulesLocked returns the rules of all objects of a resource, sorted by their names.
func (h *Hub) rulesLocked(resource Resource) []*admissionv1.InterestRule {
	var rules []*admissionv1.InterestRule
	objects := h.objects[resource]
	for _, k := range slices.SortedFunc(maps.Keys(objects), func(a, b key) int { return cmp.Compare(a.name, b.name) }) {
		rules = append(rules, objects[k]...)
	}
	return rules
}

func (h *Hub) quotaLocked() []*admissionv1.InterestRule {
	if h.static.quotaEverywhere {
		return quotaRules(nil)
	}
	namespaces := map[string]struct{}{}
	for k := range h.objects[Quotas] {
		namespaces[k.namespace] = struct{}{}
	}
	if len(namespaces) == 0 {
		return nil
	}
	return quotaRules(slices.Sorted(maps.Keys(namespaces)))
}

// put says that an object has these rules, and that all up to position is in.
func (h *Hub) put(resource Resource, k key, rules []*admissionv1.InterestRule, position uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before, known := h.objects[resource][k]
	h.objects[resource][k] = rules
	if !known || !same(before, rules) {
		h.version++
	}
	feed := &h.feeds[resource]
	feed.changed = max(feed.changed, position)
	h.advanceLocked(feed, position)
}

// remove says that an object has gone, and that all up to position is in.
func (h *Hub) remove(resource Resource, k key, position uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, known := h.objects[resource][k]; known {
		delete(h.objects[resource], k)
		h.version++
	}
	h.advanceLocked(&h.feeds[resource], position)
}

// advance says that all up to position is in.
func (h *Hub) advance(resource Resource, position uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.advanceLocked(&h.feeds[resource], position)
}

func (h *Hub) advanceLocked(feed *feedState, position uint64) {
	// An object that was read already (a watch that begins earlier) takes nothing back.
	feed.position = max(feed.position, position)
	h.wakeLocked()
}

// replace says what all objects of a resource are, as of position.
func (h *Hub) replace(resource Resource, objects map[key][]*admissionv1.InterestRule, position, newest uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !maps.EqualFunc(h.objects[resource], objects, same) {
		h.version++
	}
	h.objects[resource] = objects
	feed := &h.feeds[resource]
	feed.listed, feed.current = true, true
	// It goes back if etcd was restored from a backup.
	feed.position, feed.changed = position, newest
	h.wakeLocked()
}

// setWatch changes how a resource is read.
func (h *Hub) setWatch(resource Resource, change func(*feedState)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.feeds[resource])
	h.wakeLocked()
}

func (h *Hub) wakeLocked() {
	for wake := range h.subscribers {
		select {
		case wake <- struct{}{}:
		default: // it is to wake up already
		}
	}
}

func same(a, b []*admissionv1.InterestRule) bool {
	return slices.EqualFunc(a, b, func(a, b *admissionv1.InterestRule) bool { return proto.Equal(a, b) })
}

// noRules are those of a quota: where it is says all.
func noRules(*corev1.ResourceQuota) []*admissionv1.InterestRule { return nil }
