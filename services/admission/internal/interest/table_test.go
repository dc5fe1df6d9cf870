package interest_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsfake "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	apiextensionsinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/predicates/rules"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	quotageneric "k8s.io/apiserver/pkg/quota/v1/generic"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/openapi/openapitest"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	quotainstall "k8s.io/kubernetes/pkg/quota/v1/install"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/admission/internal/chain"
	"github.com/trigate/trigate/services/admission/internal/convert"
	"github.com/trigate/trigate/services/admission/internal/interest"
	"github.com/trigate/trigate/services/admission/internal/kindtest"
)

// configuration is of the plugins that need one.
const configuration = `
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: EventRateLimit
  configuration: {apiVersion: eventratelimit.admission.k8s.io/v1alpha1, kind: Configuration, limits: [{type: Server, qps: 1, burst: 1}]}
- name: ImagePolicyWebhook
  configuration: {imagePolicy: {kubeConfigFile: KUBECONFIG, allowTTL: 50, denyTTL: 50, retryBackoff: 500, defaultAllow: false}}
`

const kubeconfig = `{apiVersion: v1, kind: Config, current-context: c,
contexts: [{name: c, context: {cluster: k, user: u}}], users: [{name: u, user: {}}],
clusters: [{name: k, cluster: {server: "https://127.0.0.1:1"}}]}`

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// members returns upstream's plugins: all of them, whose informers never run, so that a
// plugin that gets as far as to need one refuses the request; or those that are on by
// default, whose informers have read the objects, if there are any.
func members(t *testing.T, configFile string, objects ...runtime.Object) []interest.Plugin {
	t.Helper()
	options := kubeoptions.NewAdmissionOptions()
	if len(objects) == 0 {
		options.GenericAdmission.EnablePlugins = kubeoptions.AllOrderedPlugins
	}
	options.GenericAdmission.ConfigFile = configFile
	client, extensions := clientset{kubefake.NewClientset(objects...)}, apiextensionsfake.NewClientset()
	read := informers.NewSharedInformerFactory(client, 0)
	c, err := chain.New(chain.Config{
		Admission: options, APIs: genericoptions.NewAPIEnablementOptions(), Egress: genericoptions.NewEgressSelectorOptions(),
		Loopback:   &rest.Config{Host: "https://127.0.0.1:1"},
		Kubernetes: client, Dynamic: dynamicfake.NewSimpleDynamicClient(legacyscheme.Scheme), Extensions: extensions,
		Informers: read, ExtensionInformers: apiextensionsinformers.NewSharedInformerFactory(extensions, 0),
		Authorizer: authorizerfactory.NewAlwaysDenyAuthorizer(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if len(objects) > 0 {
		read.Start(t.Context().Done())
		t.Cleanup(read.Shutdown)
		for kind, synced := range read.WaitForCacheSync(t.Context().Done()) {
			if !synced {
				t.Fatalf("%s were not read", kind)
			}
		}
	}
	return c.Members
}

// clientset is a fake whose discovery has the schemas of the built-in types.
type clientset struct{ *kubefake.Clientset }

func (c clientset) Discovery() discovery.DiscoveryInterfaces { return schemas{c.Clientset.Discovery()} }

type schemas struct{ discovery.DiscoveryInterfaces }

func (schemas) OpenAPIV3() openapi.Client { return openapitest.NewEmbeddedFileClient() }

func allMembers(t *testing.T) ([]interest.Plugin, string) {
	t.Helper()
	file := write(t, "admission.yaml", strings.ReplaceAll(configuration, "KUBECONFIG", write(t, "kubeconfig", kubeconfig)))
	return members(t, file), file
}

// interestOf returns what plugins are interested in when nothing has been read.
func interestOf(t *testing.T, configFile string, plugins ...interest.Plugin) *admissionv1.Interest {
	t.Helper()
	hub, err := interest.New(interest.Config{Plugins: plugins, ConfigFile: configFile, Features: utilfeature.DefaultFeatureGate})
	if err != nil {
		t.Fatal(err)
	}
	return hub.Current().Interest
}

// outside are the plugins that act by objects of the API or on every write, which the
// table has no rules for.
var outside = sets.New("AlwaysAdmit", "NamespaceLifecycle", "MutatingAdmissionWebhook", "ValidatingAdmissionWebhook",
	"MutatingAdmissionPolicy", "ValidatingAdmissionPolicy", "ResourceQuota")

// TestEveryPluginIsKnown wants each of upstream's plugins to be in the chain and to have
// rules, and none to be taken for one that is not known.
func TestEveryPluginIsKnown(t *testing.T) {
	plugins, file := allMembers(t)
	var names []string
	for _, plugin := range plugins {
		names = append(names, plugin.Name)
		got := interestOf(t, file, plugin)
		all := slices.Concat(got.GetMutating(), got.GetValidating())
		if empty := len(all) == 0; empty != outside.Has(plugin.Name) {
			t.Errorf("%s has %d rules", plugin.Name, len(all))
		}
		for _, rule := range all {
			if rule.GetSource() != "" || rule.GetPlugin() != plugin.Name {
				t.Errorf("%s is interested in %v", plugin.Name, rule)
			}
		}
		if got.GetNamespaceLifecycle() != (plugin.Name == "NamespaceLifecycle") {
			t.Errorf("with %s alone, NamespaceLifecycle is %v", plugin.Name, got.GetNamespaceLifecycle())
		}
	}
	if diff := cmp.Diff(kubeoptions.AllOrderedPlugins, names); diff != "" {
		t.Errorf("the chain's plugins (-upstream's +ours):\n%s", diff)
	}
}

// TestPluginsLeaveTheRestAlone has every plugin handle what its rules do not match:
// objects of every kind, by every operation, on every kind of subresource, from anybody.
// None may refuse or change anything.
func TestPluginsLeaveTheRestAlone(t *testing.T) {
	plugins, file := allMembers(t)
	judged := map[string]int{}
	for _, plugin := range plugins {
		if outside.Has(plugin.Name) && plugin.Name != "AlwaysAdmit" {
			continue
		}
		says := interestOf(t, file, plugin)
		t.Run(plugin.Name, func(t *testing.T) {
			each(t, func(t *testing.T, a admission.Attributes) {
				if !plugin.Handler.Handles(a.GetOperation()) {
					return
				}
				before := copyOf(a.GetObject())
				objects := admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme)
				if mutating, ok := plugin.Handler.(admission.MutationInterface); ok && !anyMatches(says.GetMutating(), a) {
					judged[plugin.Name]++
					if err := mutating.Admit(t.Context(), a, objects); err != nil {
						t.Fatalf("Admit(%s) = %v, want nil", describe(a), err)
					}
					if diff := cmp.Diff(before, copyOf(a.GetObject())); diff != "" {
						t.Fatalf("Admit(%s) changed the object:\n%s", describe(a), diff)
					}
				}
				if validating, ok := plugin.Handler.(admission.ValidationInterface); ok && !anyMatches(says.GetValidating(), a) {
					judged[plugin.Name]++
					if err := validating.Validate(t.Context(), a, objects); err != nil {
						t.Fatalf("Validate(%s) = %v, want nil", describe(a), err)
					}
				}
			})
		})
	}
	for _, plugin := range plugins {
		everything := plugin.Name == "AlwaysDeny" || plugin.Name == "OwnerReferencesPermissionEnforcement"
		if !outside.Has(plugin.Name) && !everything && judged[plugin.Name] == 0 {
			t.Errorf("%s was not tried", plugin.Name)
		}
	}
}

// TestQuotaRules wants the rules of a namespace with a quota to match all that upstream's
// evaluators handle.
func TestQuotaRules(t *testing.T) {
	configuration, err := quotainstall.NewQuotaConfigurationForAdmission(informers.NewSharedInformerFactory(kubefake.NewClientset(), 0), nil)
	if err != nil {
		t.Fatal(err)
	}
	registry := quotageneric.NewRegistry(configuration.Evaluators())
	hub := interest.QuotaRules(namespace)
	handled := 0
	each(t, func(t *testing.T, a admission.Attributes) {
		resource := a.GetResource().GroupResource()
		if _, ignored := configuration.IgnoredResources()[resource]; ignored || a.GetNamespace() == "" {
			return
		}
		if operation := a.GetOperation(); operation != admission.Create && operation != admission.Update {
			return
		}
		evaluator := registry.Get(resource)
		if evaluator == nil {
			evaluator = quotageneric.NewObjectCountEvaluator(resource, nil, "")
		}
		if !evaluator.Handles(a) || resource.Resource == "namespaces" {
			return
		}
		handled++
		if !anyMatches(hub, a) {
			t.Fatalf("the evaluator of %s handles %s", resource, describe(a))
		}
	})
	if handled == 0 {
		t.Error("nothing was handled")
	}
}

const namespace = "ns"

// subresources are those of each resource of the built-in groups, by upstream's OpenAPI
// documents.
var subresources = sync.OnceValues(func() (map[schema.GroupResource]sets.Set[string], error) {
	documents, err := openapitest.NewEmbeddedFileClient().Paths()
	if err != nil {
		return nil, err
	}
	all := map[schema.GroupResource]sets.Set[string]{}
	for _, document := range documents {
		content, err := document.Schema(runtime.ContentTypeJSON)
		if err != nil {
			return nil, err
		}
		var spec struct{ Paths map[string]any }
		if err := json.Unmarshal(content, &spec); err != nil {
			return nil, err
		}
		for path := range spec.Paths {
			if match := subresourcePath.FindStringSubmatch(path); match != nil {
				resource := schema.GroupResource{Group: match[1], Resource: match[2]}
				if all[resource] == nil {
					all[resource] = sets.New[string]()
				}
				all[resource].Insert(match[3])
			}
		}
	}
	return all, nil
})

var subresourcePath = regexp.MustCompile(`^/(?:api|apis/([^/]+))/v[^/]+/(?:namespaces/\{namespace\}/)?([^/{}]+)/\{name\}/([^/]+)`)

// of returns the resource itself and its subresources.
func of(t *testing.T, resource schema.GroupResource) []string {
	t.Helper()
	all, err := subresources()
	if err != nil {
		t.Fatal(err)
	}
	if len(all[core("pods").GroupResource()]) < 9 {
		t.Fatalf("the subresources of Pods are %v", all[core("pods").GroupResource()])
	}
	return append([]string{""}, sets.List(all[resource])...)
}

// people are everybody that some plugin treats in a way of their own.
var people = []user.Info{
	&user.DefaultInfo{Name: "ann", Groups: []string{user.AllAuthenticated}},
	&user.DefaultInfo{Name: "system:node:", Groups: []string{user.NodesGroup, user.AllAuthenticated}},
	&user.DefaultInfo{Name: "system:node:n", Groups: []string{user.NodesGroup, user.AllAuthenticated}},
}

// each calls test with requests for objects of every kind.
func each(t *testing.T, test func(*testing.T, admission.Attributes)) {
	kindtest.Each(t, func(t *testing.T, kind kindtest.Kind) {
		resource, _ := meta.UnsafeGuessKindToResource(kind.GroupVersionKind)
		requests(t, kind.GroupVersionKind, resource, of(t, resource.GroupResource()), kind.New(t), kind.New(t), test)
		// What is sent to a subresource is often of a kind of its own.
		for _, parent := range parents[kind.Kind] {
			requests(t, kind.GroupVersionKind, parent.resource, []string{parent.subresource}, kind.New(t), kind.New(t), test)
		}
	})
	thing := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Pod"}
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Pod", "metadata": map[string]any{"name": "a", "namespace": namespace}}}
	requests(t, thing, thing.GroupVersion().WithResource("pods"), []string{"", "scale", "status"}, object, object.DeepCopy(), test)
}

type parent struct {
	resource    schema.GroupVersionResource
	subresource string
}

var parents = map[string][]parent{
	"Binding":              {{core("pods"), "binding"}},
	"Eviction":             {{core("pods"), "eviction"}},
	"TokenRequest":         {{core("serviceaccounts"), "token"}},
	"Scale":                {{core("replicationcontrollers"), "scale"}, {schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, "scale"}},
	"PodExecOptions":       {{core("pods"), "exec"}},
	"PodAttachOptions":     {{core("pods"), "attach"}},
	"PodProxyOptions":      {{core("pods"), "proxy"}},
	"NodeProxyOptions":     {{core("nodes"), "proxy"}},
	"ServiceProxyOptions":  {{core("services"), "proxy"}},
	"PodPortForwardOption": {{core("pods"), "portforward"}},
}

func core(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: resource}
}

func requests(
	t *testing.T, kind schema.GroupVersionKind, resource schema.GroupVersionResource, subresources []string,
	object, old runtime.Object, test func(*testing.T, admission.Attributes),
) {
	t.Helper()
	for _, subresource := range subresources {
		for _, who := range people {
			for _, in := range []string{namespace, ""} {
				for _, r := range []struct {
					operation            admission.Operation
					object, old, options runtime.Object
				}{
					{admission.Create, object, nil, &metav1.CreateOptions{}},
					{admission.Update, object, old, &metav1.UpdateOptions{}},
					{admission.Delete, nil, old, &metav1.DeleteOptions{}},
					{admission.Connect, object, nil, nil},
				} {
					test(t, admission.NewAttributesRecord(copyOf(r.object), copyOf(r.old), kind, in, "a", resource, subresource, r.operation, r.options, false, who))
				}
			}
		}
	}
}

func copyOf(object runtime.Object) runtime.Object {
	if object == nil {
		return nil
	}
	return object.DeepCopyObject()
}

func describe(a admission.Attributes) string {
	return string(a.GetOperation()) + " " + a.GetResource().String() + "/" + a.GetSubresource() + " by " + a.GetUserInfo().GetName()
}

// anyMatches holds a request against rules by upstream's matcher.
func anyMatches(all []*admissionv1.InterestRule, a admission.Attributes) bool {
	return slices.ContainsFunc(all, func(m *admissionv1.InterestRule) bool {
		switch {
		case len(m.GetNamespaces()) > 0 && !slices.Contains(m.GetNamespaces(), a.GetNamespace()):
			return false
		case len(m.GetUserGroups()) > 0 && !sets.New(m.GetUserGroups()...).HasAny(a.GetUserInfo().GetGroups()...):
			return false
		}
		rule := admissionregistrationv1.RuleWithOperations{
			Rule: admissionregistrationv1.Rule{APIGroups: m.GetApiGroups(), APIVersions: m.GetApiVersions(), Resources: m.GetResources()},
		}
		if m.GetScope() == admissionv1.Scope_SCOPE_NAMESPACED {
			scope := admissionregistrationv1.NamespacedScope
			rule.Scope = &scope
		}
		for _, operation := range m.GetOperations() {
			known, _ := convert.DecodeOperation(operation)
			rule.Operations = append(rule.Operations, admissionregistrationv1.OperationType(known))
		}
		matcher := rules.Matcher{Rule: rule, Attr: a}
		return matcher.Matches()
	})
}
