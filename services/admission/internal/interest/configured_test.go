package interest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/admission/internal/interest"
)

// member returns one of upstream's plugins.
func member(t *testing.T, name string) interest.Plugin {
	t.Helper()
	plugins, _ := allMembers(t)
	i := slices.IndexFunc(plugins, func(p interest.Plugin) bool { return p.Name == name })
	if i < 0 {
		t.Fatalf("there is no plugin %s", name)
	}
	return plugins[i]
}

// isEverything returns whether all requests match some rule.
func isEverything(rules []*admissionv1.InterestRule) bool {
	return slices.ContainsFunc(rules, func(rule *admissionv1.InterestRule) bool {
		return len(rule.GetOperations()) == 0 && slices.Equal(rule.GetApiGroups(), []string{"*"}) && slices.Equal(rule.GetApiVersions(), []string{"*"}) &&
			slices.Equal(rule.GetResources(), []string{"*/*"}) && len(rule.GetNamespaces())+len(rule.GetUserGroups()) == 0
	})
}

// TestUncertainPlugins wants plugins whose configuration may hold more than the API tells
// of, and those that nobody knows, to be interested in everything.
func TestUncertainPlugins(t *testing.T) {
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n"
	manifests := func(plugin string) string {
		return fmt.Sprintf("%s- {name: %s, configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, staticManifestsDir: %s}}\n", head, plugin, t.TempDir())
	}
	for name, test := range map[string]struct {
		plugin               interest.Plugin
		file                 string
		mutating, validating bool
	}{
		"validating webhooks in files":    {member(t, "ValidatingAdmissionWebhook"), manifests("ValidatingAdmissionWebhook"), false, true},
		"mutating webhooks in files":      {member(t, "MutatingAdmissionWebhook"), manifests("MutatingAdmissionWebhook"), true, false},
		"webhooks of the API alone":       {member(t, "ValidatingAdmissionWebhook"), manifests("MutatingAdmissionWebhook"), false, false},
		"a plugin that nobody knows":      {interest.Plugin{Name: "Novelty", Handler: member(t, "NodeRestriction").Handler}, head, true, false},
		"policies of a plugin of another": {interest.Plugin{Name: "ValidatingAdmissionPolicy", Handler: member(t, "PodSecurity").Handler}, head, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			got := interestOf(t, write(t, "admission.yaml", test.file), test.plugin)
			if m, v := isEverything(got.GetMutating()), isEverything(got.GetValidating()); m != test.mutating || v != test.validating {
				t.Errorf("everything is of interest to mutating %v, validating %v, want %v, %v; got %v", m, v, test.mutating, test.validating, got)
			}
		})
	}
}

// TestLimitedResources wants quota to be asked for in every namespace if something may
// only be used where a quota says so.
func TestLimitedResources(t *testing.T) {
	file := write(t, "admission.yaml", `
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ResourceQuota
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: ResourceQuotaConfiguration, limitedResources: [{resource: pods, matchContains: [pods]}]}
`)
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	a := admission.NewAttributesRecord(&unstructured.Unstructured{}, nil, schema.GroupVersionKind{}, "any", "a", pods, "", admission.Create, nil, false, people[0])
	if got := interestOf(t, file, member(t, "ResourceQuota")); !anyMatches(got.GetValidating(), a) {
		t.Errorf("a Pod in a namespace without a quota does not match %v", got)
	}
	if got := interestOf(t, "", member(t, "ResourceQuota")); anyMatches(got.GetValidating(), a) {
		t.Errorf("without limited resources, it matches %v", got)
	}
}

// TestTooMuchIsEverything wants a bound on what is told.
func TestTooMuchIsEverything(t *testing.T) {
	hub, err := interest.New(interest.Config{Plugins: []interest.Plugin{member(t, "ValidatingAdmissionWebhook")}, Features: utilfeature.DefaultFeatureGate})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		interest.PutWebhook(hub, &admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{strings.Repeat("a", 500)}},
			}}}},
		})
		if i == 0 && isEverything(hub.Current().Interest.GetValidating()) {
			t.Fatal("one webhook is everything")
		}
	}
	if got := hub.Current().Interest; !isEverything(got.GetValidating()) || !isEverything(got.GetMutating()) {
		t.Errorf("got %d rules", len(got.GetValidating()))
	}
}
