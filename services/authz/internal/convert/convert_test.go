package convert

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// sameErrors compares errors by their text, which is all that crosses.
var sameErrors = cmp.Comparer(func(a, b error) bool {
	return (a == nil) == (b == nil) && (a == nil || a.Error() == b.Error())
})

func requirement(t testing.TB, key string, op selection.Operator, values ...string) labels.Requirement {
	t.Helper()
	r, err := labels.NewRequirement(key, op, values)
	if err != nil {
		t.Fatalf("NewRequirement(%q, %q, %q) = %v", key, op, values, err)
	}
	return *r
}

func TestAttributesRoundTrip(t *testing.T) {
	jane := &user.DefaultInfo{Name: "jane", UID: "7", Groups: []string{"b", "a"}, Extra: map[string][]string{"example.com/team": {"blue", "red"}}}
	for name, tc := range map[string]struct {
		attributes authorizer.AttributesRecord
		// wantEncoded is whether the message is percent-encoded.
		wantEncoded bool
	}{
		"nothing but a user": {attributes: authorizer.AttributesRecord{User: &user.DefaultInfo{}}},
		"resource": {attributes: authorizer.AttributesRecord{
			User: jane, Verb: "get", Namespace: "ns", APIGroup: "apps", APIVersion: "v1", Resource: "deployments",
			Subresource: "scale", Name: "web%2f", ResourceRequest: true, Path: "/apis/apps/v1/namespaces/ns/deployments/web/scale",
		}},
		"path": {attributes: authorizer.AttributesRecord{User: jane, Verb: "get", Path: "/healthz/é"}},
		"selectors": {attributes: authorizer.AttributesRecord{
			User: jane, Verb: "list", Resource: "pods", ResourceRequest: true,
			FieldSelectorRequirements: fields.Requirements{
				{Operator: selection.Equals, Field: "spec.nodeName", Value: "node-1"},
				{Operator: selection.NotEquals, Field: "metadata.name", Value: ""},
			},
			LabelSelectorRequirements: labels.Requirements{
				requirement(t, "app", selection.In, "b", "a"),
				requirement(t, "example.com/tier", selection.Exists),
				requirement(t, "n", selection.GreaterThan, "3"),
			},
		}},
		"selectors that do not parse": {attributes: authorizer.AttributesRecord{
			User: jane, Verb: "list", Resource: "pods", ResourceRequest: true,
			FieldSelectorParsingErr: errors.New("invalid selector: 'a'"),
			LabelSelectorParsingErr: errors.New("unable to parse"),
		}},
		"selectors that parse in part": {attributes: authorizer.AttributesRecord{
			User: jane, Verb: "list", Resource: "pods", ResourceRequest: true,
			FieldSelectorRequirements: fields.Requirements{{Operator: selection.Equals, Field: "a", Value: "b"}},
			FieldSelectorParsingErr:   errors.New("fieldSelectors do not yet support Exists"),
			LabelSelectorRequirements: labels.Requirements{requirement(t, "app", selection.DoesNotExist)},
			LabelSelectorParsingErr:   errors.New(`"x" is not a valid label selector operator`),
		}},
		"a path that is not UTF-8": {
			attributes:  authorizer.AttributesRecord{User: jane, Verb: "get", Path: "/a b\xff%41"},
			wantEncoded: true,
		},
		"a selector that is not UTF-8": {
			attributes: authorizer.AttributesRecord{
				User: jane, Verb: "list é", Resource: "pods", ResourceRequest: true,
				FieldSelectorRequirements: fields.Requirements{{Operator: selection.DoubleEquals, Field: "a\xf0", Value: "%"}},
				LabelSelectorRequirements: labels.Requirements{requirement(t, "app", selection.NotIn, "x", "y")},
				LabelSelectorParsingErr:   errors.New("cannot parse \xff"),
			},
			wantEncoded: true,
		},
		"a user who is not UTF-8": {attributes: authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "j\xe9"}, Verb: "get", Path: "/é"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := onWire(t, AttributesToProto(tc.attributes), &authzv1.Attributes{})
			if m.GetPercentEncoded() != tc.wantEncoded {
				t.Errorf("percent_encoded = %v, want %v", m.GetPercentEncoded(), tc.wantEncoded)
			}
			got, err := AttributesFromProto("attributes", m)
			if err != nil {
				t.Fatalf("AttributesFromProto() = %v, want nil", err)
			}
			if diff := cmp.Diff(tc.attributes, got, sameErrors); diff != "" {
				t.Errorf("round trip (-want +got):\n%s", diff)
			}
		})
	}
}

// onWire marshals a message and unmarshals it into another.
func onWire[M proto.Message](t testing.TB, sent, received M) M {
	t.Helper()
	wire, err := proto.Marshal(sent)
	if err != nil {
		t.Fatalf("Marshal(%v) = %v, want nil", sent, err)
	}
	if err := proto.Unmarshal(wire, received); err != nil {
		t.Fatalf("Unmarshal() = %v, want nil", err)
	}
	return received
}

func TestAttributesFromProtoRefuses(t *testing.T) {
	jane := &authnv1.UserInfo{Name: "jane"}
	for name, tc := range map[string]struct {
		message   *authzv1.Attributes
		wantField string
	}{
		"nothing":               {wantField: "attributes"},
		"no user":               {message: &authzv1.Attributes{Verb: "get"}, wantField: "attributes.user"},
		"a bad escape":          {message: &authzv1.Attributes{User: jane, Path: "/%G", PercentEncoded: true}, wantField: "attributes.path"},
		"a bad escape in error": {message: &authzv1.Attributes{User: jane, LabelSelectorError: "%", PercentEncoded: true}, wantField: "attributes.label_selector_error"},
		"a bad escape in user": {
			message:   &authzv1.Attributes{User: &authnv1.UserInfo{Name: "%", PercentEncoded: true}},
			wantField: "attributes.user.name",
		},
		"no field operator": {
			message:   &authzv1.Attributes{User: jane, FieldSelector: []*authzv1.FieldSelectorRequirement{{Field: "a", Operator: "="}, {Field: "b"}}},
			wantField: "attributes.field_selector[1].operator",
		},
		"an unknown label operator": {
			message:   &authzv1.Attributes{User: jane, LabelSelector: []*authzv1.LabelSelectorRequirement{{Key: "a", Operator: "~"}}},
			wantField: "attributes.label_selector[0]",
		},
		"a bad label key": {
			message:   &authzv1.Attributes{User: jane, LabelSelector: []*authzv1.LabelSelectorRequirement{{Key: "a b", Operator: "exists"}}},
			wantField: "attributes.label_selector[0]",
		},
		"a bad escape in a label": {
			message:   &authzv1.Attributes{User: jane, PercentEncoded: true, LabelSelector: []*authzv1.LabelSelectorRequirement{{Key: "a", Operator: "in", Values: []string{"b", "%0"}}}},
			wantField: "attributes.label_selector[0].values[1]",
		},
		"a long name": {
			message:   &authzv1.Attributes{User: jane, Name: strings.Repeat("n", maxStringBytes+1)},
			wantField: "attributes.name",
		},
		"many terms": {
			message:   &authzv1.Attributes{User: jane, FieldSelector: make([]*authzv1.FieldSelectorRequirement, maxItems+1)},
			wantField: "attributes.field_selector",
		},
		"many values": {
			message: &authzv1.Attributes{User: jane, LabelSelector: []*authzv1.LabelSelectorRequirement{
				{Key: "a", Operator: "in", Values: make([]string, maxItems+1)},
			}},
			wantField: "attributes.label_selector[0].values",
		},
		"many groups": {
			message:   &authzv1.Attributes{User: &authnv1.UserInfo{Groups: make([]string, maxItems+1)}},
			wantField: "attributes.user.groups",
		},
		"much extra": {
			message: &authzv1.Attributes{User: &authnv1.UserInfo{Extra: []*authnv1.ExtraEntry{
				{Key: "a"}, {Key: "b", Values: make([]string, maxItems+1)},
			}}},
			wantField: "attributes.user.extra[1].values",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := AttributesFromProto("attributes", tc.message)
			wantInvalid(t, err, tc.wantField)
			if diff := cmp.Diff(authorizer.AttributesRecord{}, got); diff != "" {
				t.Errorf("AttributesFromProto() with an error (-want +got):\n%s", diff)
			}
		})
	}
}

func wantInvalid(t *testing.T, err error, field string) {
	t.Helper()
	e, ok := rpcerr.As(err)
	if !ok || e.Reason != rpcerr.ReasonInvalidArgument || e.Field != field {
		t.Errorf("err = %v, want an invalid %s", err, field)
	}
}

func TestSayRoundTrip(t *testing.T) {
	for name, tc := range map[string]struct {
		chain       Say
		authorizers []Say
		wantEncoded bool
	}{
		"deny":       {chain: Say{Decision: authorizer.DecisionDeny, Reason: "Everything is forbidden."}},
		"allow":      {chain: Say{Decision: authorizer.DecisionAllow}},
		"no opinion": {chain: Say{Decision: authorizer.DecisionNoOpinion, Reason: "rbac: no\nnode: no"}},
		"an allow with an error": {
			chain: Say{Decision: authorizer.DecisionAllow, Reason: "100%", Err: errors.New("some role is gone")},
			authorizers: []Say{
				{Name: "node", Decision: authorizer.DecisionNoOpinion, Reason: "not a node"},
				{Name: "rbac", Decision: authorizer.DecisionAllow, Reason: "100%", Err: errors.New("some role is gone")},
			},
		},
		"text that is not UTF-8": {
			chain:       Say{Decision: authorizer.DecisionNoOpinion, Reason: "no \xff", Err: errors.New("é%")},
			authorizers: []Say{{Name: "web hook", Decision: authorizer.DecisionNoOpinion, Reason: "no"}},
			wantEncoded: true,
		},
		"one authorizer's text is not UTF-8": {
			chain:       Say{Decision: authorizer.DecisionAllow, Reason: "é"},
			authorizers: []Say{{Name: "a", Decision: authorizer.DecisionNoOpinion, Err: errors.New("\xff")}},
			wantEncoded: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := onWire(t, SayToProto(tc.chain, tc.authorizers), &authzv1.AuthorizeResponse{})
			if m.GetPercentEncoded() != tc.wantEncoded || len(m.GetAuthorizers()) != len(tc.authorizers) {
				t.Errorf("SayToProto() = %v, want %d authorizers and percent_encoded %v", m, len(tc.authorizers), tc.wantEncoded)
			}
			got, err := SayFromProto(m)
			if err != nil {
				t.Fatalf("SayFromProto() = %v, want nil", err)
			}
			if diff := cmp.Diff(tc.chain, got, sameErrors); diff != "" {
				t.Errorf("round trip (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSayToProtoNamesAuthorizers(t *testing.T) {
	got := SayToProto(Say{Decision: authorizer.DecisionDeny, Reason: "no"}, []Say{
		{Name: "node", Decision: authorizer.DecisionNoOpinion, Err: errors.New("graph")},
		{Name: "hook", Decision: authorizer.DecisionDeny, Reason: "no"},
	})
	want := &authzv1.AuthorizeResponse{
		Decision: authzv1.Decision_DECISION_DENY, Reason: "no",
		Authorizers: []*authzv1.AuthorizerDecision{
			{Name: "node", Decision: authzv1.Decision_DECISION_NO_OPINION, Error: "graph"},
			{Name: "hook", Decision: authzv1.Decision_DECISION_DENY, Reason: "no"},
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("SayToProto() (-want +got):\n%s", diff)
	}
}

// TestSayFromProtoRefuses has answers that hold no decision. Each is an error
// and never an allow.
func TestSayFromProtoRefuses(t *testing.T) {
	for name, m := range map[string]*authzv1.AuthorizeResponse{
		"nothing":         nil,
		"empty":           {},
		"unknown":         {Decision: 99, Reason: "new in a later version"},
		"unreadable":      {Decision: authzv1.Decision_DECISION_ALLOW, Reason: "%", PercentEncoded: true},
		"what was no say": SayToProto(Say{Decision: 42}, nil),
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := SayFromProto(m); err == nil {
				t.Errorf("SayFromProto() = %v, want an error", got)
			}
		})
	}
}

func TestErrorWithoutTextStaysAnError(t *testing.T) {
	say, err := SayFromProto(SayToProto(Say{Decision: authorizer.DecisionNoOpinion, Err: errors.New("")}, nil))
	if err != nil || say.Err == nil {
		t.Errorf("round trip = %v, %v, want an error in the say", say, err)
	}
}

func TestRulesRequestRoundTrip(t *testing.T) {
	for _, namespace := range []string{"", "ns", "é%", "n\xff"} {
		jane := &user.DefaultInfo{Name: "jane", Groups: []string{"g"}}
		m := onWire(t, RulesRequestToProto(jane, namespace), &authzv1.ListRulesRequest{})
		gotUser, gotNamespace, err := RulesRequestFromProto(m)
		if err != nil || gotNamespace != namespace {
			t.Errorf("namespace %q: round trip = %q, %v", namespace, gotNamespace, err)
		}
		if diff := cmp.Diff(user.Info(jane), gotUser); diff != "" {
			t.Errorf("namespace %q: user (-want +got):\n%s", namespace, diff)
		}
	}
	_, _, err := RulesRequestFromProto(&authzv1.ListRulesRequest{Namespace: "ns"})
	wantInvalid(t, err, "user")
	_, _, err = RulesRequestFromProto(&authzv1.ListRulesRequest{User: &authnv1.UserInfo{}, Namespace: "%", PercentEncoded: true})
	wantInvalid(t, err, "namespace")
}

func TestRulesRoundTrip(t *testing.T) {
	for name, rules := range map[string]Rules{
		"none":       {},
		"incomplete": {Incomplete: true, Err: errors.New("webhook authorizer does not support user rule resolution")},
		"rules": {
			Resource: []authorizer.ResourceRuleInfo{
				&authorizer.DefaultResourceRuleInfo{Verbs: []string{"get", "*"}, APIGroups: []string{""}, Resources: []string{"pods/log"}, ResourceNames: []string{"a", "b"}},
				&authorizer.DefaultResourceRuleInfo{Verbs: []string{"list"}},
			},
			NonResource: []authorizer.NonResourceRuleInfo{
				&authorizer.DefaultNonResourceRuleInfo{Verbs: []string{"get"}, NonResourceURLs: []string{"/healthz*"}},
			},
		},
		"not UTF-8": {
			Resource:    []authorizer.ResourceRuleInfo{&authorizer.DefaultResourceRuleInfo{Verbs: []string{"é %"}}},
			NonResource: []authorizer.NonResourceRuleInfo{&authorizer.DefaultNonResourceRuleInfo{NonResourceURLs: []string{"/\xff"}}},
			Err:         errors.New("%"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := RulesFromProto(onWire(t, RulesToProto(rules), &authzv1.ListRulesResponse{}))
			if err != nil {
				t.Fatalf("RulesFromProto() = %v, want nil", err)
			}
			if diff := cmp.Diff(rules, got, sameErrors); diff != "" {
				t.Errorf("round trip (-want +got):\n%s", diff)
			}
		})
	}
	if _, err := RulesFromProto(&authzv1.ListRulesResponse{Error: "%", PercentEncoded: true}); err == nil {
		t.Error("RulesFromProto() = nil for a bad escape, want an error")
	}
}

func FuzzAttributes(f *testing.F) {
	f.Add("jane", "list", "ns", "pods", "/api/v1/pods", "spec.nodeName=n1", "app in (a,b),!c", true)
	f.Add("\xff", "get", "", "", "/a\xffb%41", "", "", false)
	f.Add("", "é", "%", "p\x00ds", "", "a==b,c!=d", "a=", true)
	f.Add("jane", "list", "ns", "pods", "", "a=\xff", "=\xff", true)
	f.Fuzz(func(t *testing.T, name, verb, namespace, resource, path, fieldSelector, labelSelector string, resourceRequest bool) {
		sent := authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: name, Groups: []string{namespace}},
			Verb: verb, Namespace: namespace, APIGroup: path, APIVersion: verb, Resource: resource, Subresource: name,
			Name: resource, ResourceRequest: resourceRequest, Path: path,
		}
		if selector, err := fields.ParseSelector(fieldSelector); err != nil {
			sent.FieldSelectorParsingErr = err
		} else if terms := selector.Requirements(); len(terms) > 0 {
			sent.FieldSelectorRequirements = terms
		}
		if terms, err := labels.ParseToRequirements(labelSelector); err != nil {
			sent.LabelSelectorParsingErr = err
		} else if len(terms) > 0 {
			sent.LabelSelectorRequirements = terms
		}
		got, err := AttributesFromProto("attributes", onWire(t, AttributesToProto(sent), &authzv1.Attributes{}))
		if err != nil {
			t.Fatalf("AttributesFromProto() = %v, want nil", err)
		}
		if diff := cmp.Diff(sent, got, sameErrors); diff != "" {
			t.Errorf("round trip (-want +got):\n%s", diff)
		}
	})
}

// FuzzAttributesFromProto feeds what anybody may send. It must not panic, and
// refuses with a field or not at all.
func FuzzAttributesFromProto(f *testing.F) {
	for _, m := range []*authzv1.Attributes{
		{},
		{User: &authnv1.UserInfo{Name: "jane"}, Verb: "get", Path: "/%41", PercentEncoded: true},
		{User: &authnv1.UserInfo{}, LabelSelector: []*authzv1.LabelSelectorRequirement{{Key: "a", Operator: "in", Values: []string{"b"}}}},
		{User: &authnv1.UserInfo{}, FieldSelector: []*authzv1.FieldSelectorRequirement{{Field: "a", Operator: "="}}},
	} {
		wire, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		m := &authzv1.Attributes{}
		if proto.Unmarshal(wire, m) != nil {
			return
		}
		record, err := AttributesFromProto("attributes", m)
		if err != nil {
			if e, ok := rpcerr.As(err); !ok || !strings.HasPrefix(e.Field, "attributes") {
				t.Errorf("err = %v, want one that names a field", err)
			}
			return
		}
		again, err := AttributesFromProto("attributes", AttributesToProto(record))
		if err != nil {
			t.Fatalf("what was read cannot be sent: %v", err)
		}
		if diff := cmp.Diff(record, again, sameErrors); diff != "" {
			t.Errorf("second round trip (-want +got):\n%s", diff)
		}
	})
}

// TestActionsFromProto reads columns of each length.
func TestActionsFromProto(t *testing.T) {
	for name, tc := range map[string]struct {
		message *authzv1.Actions
		want    []authorizer.AttributesRecord
		// wantField is what an error names, with the reason.
		wantField, wantReason string
	}{
		"nothing": {message: &authzv1.Actions{}},
		"one of each": {
			message: &authzv1.Actions{
				Verbs: []string{"get"}, Namespaces: []string{"ns"}, ApiGroups: []string{"apps"}, ApiVersions: []string{"v1"},
				Resources: []string{"deployments"}, Subresources: []string{"scale"}, Names: []string{"a%"},
			},
			want: []authorizer.AttributesRecord{{
				Verb: "get", Namespace: "ns", APIGroup: "apps", APIVersion: "v1", Resource: "deployments", Subresource: "scale", Name: "a%",
			}},
		},
		"one for all and one for each": {
			message: &authzv1.Actions{Verbs: []string{"get", "list", ""}, Resources: []string{"pods"}, Names: []string{"a", "", "c"}},
			want:    []authorizer.AttributesRecord{{Verb: "get", Resource: "pods", Name: "a"}, {Verb: "list", Resource: "pods"}, {Resource: "pods", Name: "c"}},
		},
		"encoded": {
			message: &authzv1.Actions{Verbs: []string{"get"}, Names: []string{"a%FF", "b%25"}, PercentEncoded: true},
			want:    []authorizer.AttributesRecord{{Verb: "get", Name: "a\xff"}, {Verb: "get", Name: "b%"}},
		},
		"two lengths": {
			message:   &authzv1.Actions{Verbs: []string{"get", "list"}, Resources: []string{"pods"}, Names: []string{"a", "b", "c"}},
			wantField: "actions.names", wantReason: "has 3 items, and actions.verbs has 2",
		},
		"too many": {
			message:   &authzv1.Actions{Verbs: []string{"get"}, Namespaces: make([]string, 5)},
			wantField: "actions.namespaces", wantReason: "has 5 items, at most 4 are accepted",
		},
		"a broken escape": {
			message:   &authzv1.Actions{Resources: []string{"pods", "%2"}, PercentEncoded: true},
			wantField: "actions.resources[1]", wantReason: "incomplete escape at octet 0",
		},
		"a long string": {
			message:   &authzv1.Actions{Names: []string{"a", strings.Repeat("b", maxStringBytes+1)}},
			wantField: "actions.names[1]", wantReason: "has 3145729 bytes, at most 3145728 are accepted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			actions, err := ActionsFromProto("actions", tc.message, 4)
			if tc.wantField != "" {
				if e, ok := rpcerr.As(err); !ok || e.Field != tc.wantField || !strings.Contains(err.Error(), tc.wantReason) {
					t.Errorf("ActionsFromProto() = %v, want %s: %s", err, tc.wantField, tc.wantReason)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []authorizer.AttributesRecord
			for i := range actions.Len() {
				got = append(got, authorizer.AttributesRecord{})
				actions.Into(&got[i], i)
				tc.want[i].ResourceRequest = true
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("actions (-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzActionsFromProto feeds what anybody may send. It must not panic, and refuses with a
// field or has as many actions as it says.
func FuzzActionsFromProto(f *testing.F) {
	for _, m := range []*authzv1.Actions{
		{},
		{Verbs: []string{"get"}, Names: []string{"a", "b"}},
		{Verbs: []string{"get", "list"}, Names: []string{"a", "b", "c"}},
		{Namespaces: []string{"%41", "%"}, PercentEncoded: true},
	} {
		wire, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		m := &authzv1.Actions{}
		if proto.Unmarshal(wire, m) != nil {
			return
		}
		actions, err := ActionsFromProto("actions", m, 100)
		if err != nil {
			if e, ok := rpcerr.As(err); !ok || !strings.HasPrefix(e.Field, "actions.") {
				t.Errorf("err = %v, want one that names a field", err)
			}
			return
		}
		if actions.Len() > 100 {
			t.Errorf("Len() = %d, want 100 at most", actions.Len())
		}
		record := authorizer.AttributesRecord{}
		for i := range actions.Len() {
			actions.Into(&record, i)
		}
		if n := len(m.GetNames()); n > 1 && !m.GetPercentEncoded() && record.Name != m.GetNames()[n-1] {
			t.Errorf("the last name is %q, want that of %v", record.Name, m)
		}
	})
}

func BenchmarkAttributesRoundTrip(b *testing.B) {
	attributes := authorizer.AttributesRecord{
		User: &user.DefaultInfo{
			Name: "system:serviceaccount:default:builder", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"},
			Extra: map[string][]string{"authentication.kubernetes.io/pod-name": {"builder-0"}},
		},
		Verb: "get", Namespace: "default", APIVersion: "v1", Resource: "pods", Name: "web-0", ResourceRequest: true,
		Path: "/api/v1/namespaces/default/pods/web-0",
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := AttributesFromProto("attributes", AttributesToProto(attributes)); err != nil {
			b.Fatal(err)
		}
	}
}
