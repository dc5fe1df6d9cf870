package interest

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/apis/core"

	admissionclient "github.com/trigate/trigate/services/admission/client"
)

const testPrefix = "labels.example.com/"

// startNamespaces reads the namespaces of a client until the test ends. The client is
// client-go's fake, which gives out whatever resourceVersions it is told.
func startNamespaces(t *testing.T, client *kubefake.Clientset) *Namespaces {
	t.Helper()
	factory := informers.NewSharedInformerFactory(client, 0)
	namespaces, err := NewNamespaces(factory.Core().V1().Namespaces())
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	t.Cleanup(factory.Shutdown) // t's context has ended then
	eventually(t, "the namespaces are read", namespaces.synced)
	return namespaces
}

func labelled(name, version string, labels ...string) *corev1.Namespace {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version, Labels: map[string]string{}}}
	for _, label := range labels {
		namespace.Labels[label] = "v"
	}
	return namespace
}

// TestNamespaceLabels holds requests against a rule that goes by labels of namespaces.
func TestNamespaceLabels(t *testing.T) {
	client := kubefake.NewClientset(
		labelled("plain", "3", "example.com/labels.example.com"), labelled("empty", "4"), labelled("asks", "5", "a", testPrefix+"warn", "z"))
	namespaces := startNamespaces(t, client)
	rules := interestRulesFor("configmaps")
	rules[0].NamespaceLabelPrefix = testPrefix
	judge := func(in string) string {
		return reasonNames[matchRules(rules, request(admission.Create, "configmaps", in), objects(), namespaces)]
	}
	for in, want := range map[string]string{"plain": "nobody", "empty": "nobody", "asks": "interested", "unknown": "interested", "": "interested"} {
		if got := judge(in); got != want {
			t.Errorf("a request in %q: %s, want %s", in, got, want)
		}
	}

	// What this gateway has written counts before the informer has read it.
	tracker := New(nil, namespaces)
	tracker.Observe(core.Resource("namespaces"), &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "plain", ResourceVersion: "6"}}, false)
	for _, in := range []string{"plain", "empty"} {
		if got := judge(in); got != "interested" {
			t.Errorf("a request in %s right after a write: %s, want interested", in, got)
		}
	}
	if _, err := client.CoreV1().Namespaces().Update(t.Context(), labelled("plain", "6", testPrefix+"audit"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the write is read", func() bool { return judge("empty") == "nobody" })
	if got := judge("plain"); got != "interested" {
		t.Errorf("a request in the namespace that has got a label: %s, want interested", got)
	}
	if _, err := client.CoreV1().Namespaces().Update(t.Context(), labelled("plain", "7"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the label has gone", func() bool { return judge("plain") == "nobody" })

	// A deletion has nobody ask for more.
	tracker.Observe(core.Resource("namespaces"), &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "asks", ResourceVersion: "9"}}, true)
	if got := judge("plain"); got != "nobody" {
		t.Errorf("a request after a deletion: %s, want nobody", got)
	}
}

// TestNamespacesThatAreNotRead wants a rule to match as long as labels are not known.
func TestNamespacesThatAreNotRead(t *testing.T) {
	factory := informers.NewSharedInformerFactory(kubefake.NewClientset(labelled("plain", "3")), 0)
	namespaces, err := NewNamespaces(factory.Core().V1().Namespaces())
	if err != nil {
		t.Fatal(err)
	}
	if !namespaces.mayHaveLabel("plain", testPrefix) {
		t.Error("mayHaveLabel() = false before anything was read, want true")
	}
}

// interestRulesFor are those of somebody who is interested in a resource.
func interestRulesFor(resource string) []admissionclient.InterestRule {
	rule := admissionclient.InterestRule{}
	rule.RuleWithOperations = webhook(resource, "").Webhooks[0].Rules[0]
	rule.Scope = nil
	return []admissionclient.InterestRule{rule}
}
