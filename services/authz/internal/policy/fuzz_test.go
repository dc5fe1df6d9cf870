package policy

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/internal/convert"
	"github.com/trigate/trigate/services/authz/rbactest"
)

// FuzzAttributes sends any attributes as a message and has the receiver's copy
// decided over an index: the answer is upstream's for the original.
func FuzzAttributes(f *testing.F) {
	rng := rand.New(rand.NewPCG(5, 6))
	for seed := range uint64(50) {
		q := rbactest.Random(rng).Question(rng)
		group, reason := "", ""
		if groups := q.User.GetGroups(); len(groups) > 0 {
			group = groups[0]
		}
		if q.LabelSelectorParsingErr != nil {
			reason = q.LabelSelectorParsingErr.Error()
		}
		f.Add(seed, q.User.GetName(), group, q.Verb, q.Namespace, q.APIGroup, q.Resource, q.Subresource, q.Name, q.Path, reason, q.ResourceRequest)
	}
	f.Add(uint64(1), "\xff", "%41", "*", "n\x00s", "*", "*", "*/scale", "\xc3\x28", "/\u00e9/../*", "%", true)
	f.Fuzz(func(t *testing.T, seed uint64, name, group, verb, namespace, apiGroup, resource, subresource, objectName, path, parsing string, resourceRequest bool) {
		question := authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: name, Groups: []string{group, "dev"}, Extra: map[string][]string{group: {name}}},
			Verb: verb, Namespace: namespace, APIGroup: apiGroup, APIVersion: "v1", Resource: resource,
			Subresource: subresource, Name: objectName, Path: path, ResourceRequest: resourceRequest,
		}
		if parsing != "" {
			question.FieldSelectorParsingErr = errors.New(parsing)
		}
		received := overTheWire(t, question)

		w := rbactest.Random(rand.New(rand.NewPCG(seed, 7)))
		store := NewStore()
		feedsOf(store).add(t, w.Objects()...)
		want := ask(t.Context(), rbac.New(w, w, w, w), question)
		if got := ask(NewEvaluation(t.Context(), received), rbac.New(store, store, store, store), received); got != want {
			t.Errorf("%+v:\n got %+v\nwant %+v", question, got, want)
		}
		view, deciding := store.View(received.User), NewAuthorizer(store)
		for range 3 { // The second question takes the view, and the third has the answer of the second.
			if got := ask(view.NewEvaluation(t.Context(), received), deciding, received); got != want {
				t.Errorf("%+v by a view:\n got %+v\nwant %+v", question, got, want)
			}
		}
	})
}

func overTheWire(t *testing.T, question authorizer.AttributesRecord) authorizer.AttributesRecord {
	t.Helper()
	data, err := proto.Marshal(convert.AttributesToProto(question))
	if err != nil {
		t.Fatalf("Marshal() = %v", err)
	}
	message := &authzv1.Attributes{}
	if err := proto.Unmarshal(data, message); err != nil {
		t.Fatalf("Unmarshal() = %v", err)
	}
	received, err := convert.AttributesFromProto("attributes", message)
	if err != nil {
		t.Fatalf("AttributesFromProto() = %v", err)
	}
	texts := cmp.Comparer(func(a, b error) bool { return a == nil && b == nil || a != nil && b != nil && a.Error() == b.Error() })
	if diff := cmp.Diff(question, received, texts); diff != "" {
		t.Errorf("attributes changed on the way (-sent +received):\n%s", diff)
	}
	return received
}
