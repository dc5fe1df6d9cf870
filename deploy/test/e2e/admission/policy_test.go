package admission

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

const registration = "/apis/admissionregistration.k8s.io/v1/"

// indented puts lines under a key of a YAML document.
func indented(lines, prefix string) string {
	return prefix + strings.ReplaceAll(strings.TrimSpace(lines), "\n", "\n"+prefix)
}

// validatingPolicy makes a ValidatingAdmissionPolicy with a binding for one namespace
// and waits until they are in force. spec is YAML, without matchConstraints, which
// are resources (of core and apps) in the namespace; so is binding, without its
// policy and resources.
func validatingPolicy(t *testing.T, c *framework.Cluster, s *framework.Transcript, ns, name, resources, spec, binding string) {
	t.Helper()
	admin := s.Admin(t)
	admin.Make(t, registration+"validatingadmissionpolicies", name, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %s}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}
    resourceRules: [{operations: ["*"], apiGroups: ["", apps], apiVersions: [v1], resources: [%s]}]
%s
`, name, ns, resources, indented(spec, "  ")))
	admin.Make(t, registration+"validatingadmissionpolicybindings", name, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: %s}
spec:
  policyName: %s
%s
`, name, name, indented(binding, "  ")))
}

// keepParameters makes policies that have ConfigMaps as parameters and match nothing.
// They stay. Without them the control plane stops to watch ConfigMaps when a test's
// policies are gone, and never starts again: upstream's informer cannot.
func keepParameters(t *testing.T, c *framework.Cluster) {
	t.Helper()
	admin := c.Admin(t)
	const name, params = "trigate-test-keep", "paramKind: {apiVersion: v1, kind: ConfigMap}, matchConstraints: {resourceRules: [{operations: [CREATE], apiGroups: [none.trigate.test], apiVersions: [v1], resources: [nothing]}]}"
	for _, object := range []struct{ collection, kind, spec string }{
		{"validatingadmissionpolicies", "ValidatingAdmissionPolicy", params + ", validations: [{expression: 'true'}]"},
		{"validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", "policyName: " + name + ", validationActions: [Deny]"},
		{"mutatingadmissionpolicies", "MutatingAdmissionPolicy", params + ", reinvocationPolicy: Never, mutations: [{patchType: JSONPatch, jsonPatch: {expression: '[JSONPatch{op: \"test\", path: \"/a\", value: \"b\"}]'}}]"},
		{"mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding", "policyName: " + name},
	} {
		answer := admin.Send(t, "POST", registration+object.collection, fmt.Sprintf(
			"{apiVersion: admissionregistration.k8s.io/v1, kind: %s, metadata: {name: %s}, spec: {%s}}", object.kind, name, object.spec))
		if answer.Code != 201 && answer.Code != 409 {
			t.Fatalf("%s: got code %d: %s", answer.Request, answer.Code, answer.Body)
		}
	}
}

// awaitText creates an object as a dry run until the answer or its warnings have a
// text.
func awaitText(t *testing.T, c *framework.Cluster, collection, object, text string) {
	t.Helper()
	admin := c.Admin(t)
	framework.Eventually(t, "an answer with "+text, func() error {
		answer, err := admin.TrySend("POST", collection+"?dryRun=All", object)
		if err != nil {
			return err
		}
		everything := string(answer.Body) + strings.Join(answer.Header.Values("Warning"), "\n") + fmt.Sprint(answer.Audit.Annotations)
		if !strings.Contains(everything, text) {
			return fmt.Errorf("the answer is %d: %s", answer.Code, everything)
		}
		return nil
	})
}

func named(name, data string) string {
	return "{apiVersion: v1, kind: ConfigMap, metadata: {name: " + name + "}, data: {" + data + "}}"
}

func TestValidatingPoliciesTakeParameters(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		keepParameters(t, c)
		for _, limit := range []string{"{name: five, labels: {limit: 'yes'}}, data: {max: '5'}", "{name: three, labels: {limit: 'yes'}}, data: {max: '3'}", "{name: broken}, data: {max: many}"} {
			admin.Send(t, "POST", core(ns, "configmaps"), "{apiVersion: v1, kind: ConfigMap, metadata: "+limit+"}").Want(t, 201)
		}
		const policy = "trigate-test-replicas"
		validatingPolicy(t, c, s, ns, policy, "deployments", `
paramKind: {apiVersion: v1, kind: ConfigMap}
variables:
- {name: max, expression: "int(params.data.max)"}
- {name: wanted, expression: "has(object.spec.replicas) ? object.spec.replicas : 1"}
validations:
- expression: variables.wanted <= variables.max
  messageExpression: "'at most ' + params.data.max + ' replicas for ' + object.metadata.name + ' in ' + namespaceObject.metadata.name + ', not ' + string(variables.wanted)"
  reason: Forbidden
- {expression: "variables.wanted != 1 || params.metadata.name == ''", message: "one is – nothing"}
auditAnnotations:
- {key: wanted, valueExpression: "'wanted ' + string(variables.wanted)"}
`, fmt.Sprintf(`
validationActions: [Deny]
paramRef: {name: five, namespace: %s, parameterNotFoundAction: Deny}
`, ns))
		bind := func(name, ref string) {
			admin.Make(t, registration+"validatingadmissionpolicybindings", name, fmt.Sprintf(
				"{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicyBinding, metadata: {name: %s}, spec: {policyName: %s, validationActions: [Deny], paramRef: {%s}, matchResources: {objectSelector: {matchLabels: {bound: %s}}}}}",
				name, policy, ref, name))
		}
		deployments := group("apps/v1", ns, "deployments")
		replicas := func(name string, n int, labels string) string {
			return fmt.Sprintf("{apiVersion: apps/v1, kind: Deployment, metadata: {name: %s, labels: {%s}}, spec: {paused: true, replicas: %d, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: main, image: i}]}}}}", name, labels, n)
		}
		awaitText(t, c, deployments, replicas("marker", 6, ""), "at most 5 replicas")

		denied := admin.Send(t, "POST", deployments, replicas("d1", 6, "")).WantMessage(t, 403, fmt.Sprintf(
			`deployments.apps "d1" is forbidden: ValidatingAdmissionPolicy '%s' with binding '%s' denied request: at most 5 replicas for d1 in %s, not 6`, policy, policy, ns)).
			WantAnnotation(t, policy+"/wanted", "wanted 6")
		if got := denied.String(t, "reason"); got != "Forbidden" {
			t.Errorf("got reason %q, want Forbidden", got)
		}
		admin.Send(t, "POST", deployments, replicas("d1", 1, "")).WantMessage(t, 422, fmt.Sprintf(
			`deployments.apps "d1" is forbidden: ValidatingAdmissionPolicy '%s' with binding '%s' denied request: one is – nothing`, policy, policy))
		admin.Send(t, "POST", deployments, replicas("d1", 4, "")).Want(t, 201).WantAnnotation(t, policy+"/wanted", "wanted 4")
		admin.Send(t, "PATCH", deployments+"/d1", `{"spec":{"replicas":7}}`, framework.MergePatch).Want(t, 403)

		// All parameters that a selector finds are applied.
		bind("trigate-test-selected", "selector: {matchLabels: {limit: 'yes'}}, namespace: "+ns+", parameterNotFoundAction: Deny")
		awaitText(t, c, deployments, replicas("marker", 4, "bound: trigate-test-selected"), "at most 3 replicas")
		admin.Send(t, "POST", deployments, replicas("d2", 4, "bound: trigate-test-selected")).Want(t, 403)
		admin.Send(t, "POST", deployments, replicas("d2", 3, "bound: trigate-test-selected")).Want(t, 201)

		// Missing and broken ones.
		bind("trigate-test-missing", "name: missing, namespace: "+ns+", parameterNotFoundAction: Deny")
		awaitText(t, c, deployments, replicas("marker", 4, "bound: trigate-test-missing"), "no params found")
		admin.Send(t, "POST", deployments, replicas("d3", 4, "bound: trigate-test-missing")).WantMessage(t, 422, fmt.Sprintf(
			"deployments.apps \"d3\" is forbidden: ValidatingAdmissionPolicy '%s' with binding 'trigate-test-missing' denied request: failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction", policy))
		bind("trigate-test-unneeded", "name: missing, namespace: "+ns+", parameterNotFoundAction: Allow")
		admin.Send(t, "POST", deployments, replicas("d4", 4, "bound: trigate-test-unneeded")).Want(t, 201)
		bind("trigate-test-broken", "name: broken, namespace: "+ns+", parameterNotFoundAction: Deny")
		awaitText(t, c, deployments, replicas("marker", 4, "bound: trigate-test-broken"), "resulted in error")
		admin.Send(t, "POST", deployments, replicas("d5", 4, "bound: trigate-test-broken")).Want(t, 422)

		// A parameter's change is seen.
		admin.Send(t, "PATCH", core(ns, "configmaps/five"), `{"data":{"max":"50"}}`, framework.MergePatch).Want(t, 200)
		c.Admin(t).Await(t, "POST", deployments+"?dryRun=All", replicas("marker", 50, ""), 201)
		admin.Send(t, "POST", deployments, replicas("d6", 51, "")).Want(t, 403)
	})
}

func TestValidatingPoliciesAskTheAuthorizer(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns := s.Namespace(t)
		const policy, user = "trigate-test-authorizer", "policy-user"
		// The name of the ConfigMap picks the question.
		questions := map[string]string{
			"resource":     "authorizer.group('').resource('secrets').namespace(request.namespace).check('get').allowed()",
			"name":         "authorizer.group('').resource('secrets').namespace(request.namespace).name('mine').check('get').allowed()",
			"subresource":  "authorizer.group('apps').resource('deployments').subresource('scale').namespace(request.namespace).check('patch').allowed()",
			"request":      "authorizer.requestResource.check('create').allowed()",
			"request-verb": "authorizer.requestResource.check('frobnicate').allowed()",
			"reason":       "authorizer.requestResource.check('create').reason().startsWith('RBAC: allowed by RoleBinding \"policy-user/')",
			"no-reason":    "authorizer.requestResource.check('delete').reason() == ''",
			"no-error":     "!authorizer.requestResource.check('create').errored()",
			"path":         "authorizer.path('/healthz').check('get').allowed()",
			"path-secret":  "authorizer.path('/secret').check('get').allowed()",
			"account":      "authorizer.serviceAccount(request.namespace, 'default').group('').resource('pods').check('list').allowed()",
			"field":        "authorizer.group('').resource('configmaps').namespace(request.namespace).fieldSelector('metadata.name=only').check('list').allowed()",
			"label":        "authorizer.group('').resource('configmaps').namespace(request.namespace).labelSelector('a in (b, c), !d').check('list').allowed()",
			"bad-label":    "authorizer.group('').resource('configmaps').namespace(request.namespace).labelSelector('a in').check('list').errored()",
		}
		var validations []string
		for name := range sorted(questions) {
			expression, err := json.Marshal("object.metadata.name != '" + name + "' || " + questions[name])
			if err != nil {
				t.Fatal(err)
			}
			validations = append(validations, fmt.Sprintf("- {expression: %s, message: no to %s}", expression, name))
		}
		validations = append(validations, "- {expression: object.metadata.name != 'marker', message: marked}")
		validatingPolicy(t, c, s, ns, policy, "configmaps", "validations:\n"+strings.Join(validations, "\n"), "validationActions: [Deny]")
		awaitText(t, c, core(ns, "configmaps"), named("marker", ""), "marked")

		c.Grant(t, framework.Grant{
			Name: "policy-user", User: user, Namespace: ns,
			Rules: rules(
				framework.May("create", "", "configmaps"),
				framework.May("get", "", "secrets", "mine"),
				framework.May("list", "", "configmaps", "only"), // a selector is no name for RBAC
				framework.May("patch", "apps", "deployments/scale"),
			),
		})
		yes := map[string]bool{
			"name": true, "subresource": true, "request": true, "reason": true, "no-reason": true, "no-error": true, "path": true,
		}
		ordinary, admin := s.As(t, c.User(t, user)), s.Admin(t)
		for name := range sorted(questions) {
			want := 422
			if yes[name] {
				want = 201
			}
			answer := ordinary.Send(t, "POST", core(ns, "configmaps"), named(name, "")).Want(t, want)
			if want == 422 {
				answer.WantMessage(t, 422, fmt.Sprintf("configmaps %q is forbidden: ValidatingAdmissionPolicy '%s' with binding '%s' denied request: no to %s", name, policy, policy, name))
			}
			admin.Send(t, "POST", core(ns, "configmaps")+"?dryRun=All", named(name, ""))
		}
	})
}

func TestValidationActionsSayWhatBecomesOfAFailure(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		configMaps := core(ns, "configmaps")
		const failure = "validation.policy.admission.k8s.io/validation_failure"
		actions := map[string]string{"warn": "[Warn]", "audit": "[Audit]", "deny": "[Deny]", "both": "[Warn, Audit]", "deny-audit": "[Deny, Audit]"}
		for name := range sorted(actions) {
			policy := "trigate-test-" + name
			validatingPolicy(t, c, s, ns, policy, "configmaps", fmt.Sprintf(`
matchConditions: [{name: chosen, expression: "object.metadata.name == '%s'"}]
validations:
- {expression: "object.data.a == 'good'", message: 'a is not "good" – 不'}
- {expression: "object.data.b == 'good'"}
auditAnnotations:
- {key: said, valueExpression: "'said ' + object.data.a"}
- {key: silent, valueExpression: "object.data.a == 'good' ? 'is good' : ''"}
`, name), "validationActions: "+actions[name])
			awaitText(t, c, configMaps, named(name, "a: x, b: good"), "is not")
		}
		said := func(name string) string {
			return fmt.Sprintf("ValidatingAdmissionPolicy 'trigate-test-%s' with binding 'trigate-test-%s'", name, name)
		}
		const bad, good = "a: x, b: z", "a: good, b: good"
		for name := range sorted(actions) {
			admin.Send(t, "POST", configMaps+"?dryRun=All", named(name, good)).Want(t, 201).WantWarnings(t).
				WantAnnotation(t, "trigate-test-"+name+"/silent", "is good")
		}
		admin.Send(t, "POST", configMaps, named("warn", bad)).Want(t, 201).
			WantWarnings(t, "Validation failed for "+said("warn")+`: a is not \"good\" – 不`, "Validation failed for "+said("warn")+`: failed expression: object.data.b == 'good'`).
			WantAnnotation(t, "trigate-test-warn/said", "said x")
		admin.Send(t, "POST", configMaps, named("audit", bad)).Want(t, 201).WantWarnings(t).
			WantAnnotation(t, failure, `[{"message":"a is not \"good\" – 不","policy":"trigate-test-audit","binding":"trigate-test-audit","expressionIndex":0,"validationActions":["Audit"]},{"message":"failed expression: object.data.b == 'good'","policy":"trigate-test-audit","binding":"trigate-test-audit","expressionIndex":1,"validationActions":["Audit"]}]`)
		admin.Send(t, "POST", configMaps, named("deny", bad)).
			WantMessage(t, 422, `configmaps "deny" is forbidden: `+said("deny")+` denied request: a is not "good" – 不`)
		admin.Send(t, "POST", configMaps, named("both", bad)).Want(t, 201)
		admin.Send(t, "POST", configMaps, named("deny-audit", bad)).Want(t, 422)
		// kubectl shows the warnings.
		shown := s.KubectlInput(t, named("warn", "a: x, b: good"), "apply", "--server-side", "--force-conflicts", "-n", ns, "-f", "-")
		if want := "Warning: Validation failed for " + said("warn") + `: a is not "good" – 不` + "\n"; shown.Stderr != want {
			t.Errorf("kubectl apply: got stderr\n%s\nwant\n%s", shown.Stderr, want)
		}
	})
}

func TestFailurePolicyDecidesWhenAPolicyFails(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		configMaps := core(ns, "configmaps")
		cases := []struct {
			name, failurePolicy, spec string
			code                      int
		}{
			{"fails", "Fail", `validations: [{expression: "object.data.missing == 'x'", message: m}]`, 422},
			{"ignored", "Ignore", `validations: [{expression: "object.data.missing == 'x'", message: m}]`, 201},
			{"condition", "Fail", `{validations: [{expression: "true"}], matchConditions: [{name: c, expression: "object.data.missing == 'x'"}]}`, 422},
			{"condition-ignored", "Ignore", `{validations: [{expression: "false"}], matchConditions: [{name: c, expression: "object.data.missing == 'x'"}]}`, 201},
			{"annotation", "Fail", `auditAnnotations: [{key: k, valueExpression: "string(object.data.missing)"}]`, 422},
			{"annotation-ignored", "Ignore", `auditAnnotations: [{key: k, valueExpression: "string(object.data.missing)"}]`, 201},
			{"message", "Fail", `validations: [{expression: "false", messageExpression: "string(object.data.missing)", message: instead}]`, 422},
			{"empty-message", "Fail", `validations: [{expression: "false", messageExpression: "' '"}]`, 422},
			{"variable", "Fail", `{variables: [{name: v, expression: object.data.missing}], validations: [{expression: "variables.v == 'x'"}]}`, 422},
			{"expensive", "Fail", `validations: [{expression: "object.data.all(k, object.data[k].split('').all(a, object.data[k].split('').all(b, object.data[k].split('').all(c, a != 'x' || b != 'x' || c != 'x'))))"}]`, 422},
		}
		for _, tc := range cases {
			// The policy is for ConfigMaps with a label; one with the label in-force is
			// refused in any case.
			spec := strings.TrimSuffix(strings.TrimPrefix(tc.spec, "{"), "}")
			if !strings.HasPrefix(tc.spec, "{") {
				spec = tc.spec
			}
			policy := "trigate-test-" + tc.name
			admin.Make(t, registration+"validatingadmissionpolicies", policy, fmt.Sprintf(
				"{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: %s}, spec: {failurePolicy: %s, matchConstraints: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}, objectSelector: {matchLabels: {case: %s}}, resourceRules: [{operations: [CREATE], apiGroups: [''], apiVersions: [v1], resources: [configmaps]}]}, %s}}",
				policy, tc.failurePolicy, ns, tc.name, spec))
			admin.Make(t, registration+"validatingadmissionpolicybindings", policy, fmt.Sprintf(
				"{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicyBinding, metadata: {name: %s}, spec: {policyName: %s, validationActions: [Deny]}}", policy, policy))
		}
		// Policies come into force in the order in which they were made.
		validatingPolicy(t, c, s, ns, "trigate-test-last", "configmaps", `validations: [{expression: "object.metadata.name != 'marker'", message: all are in force}]`, "validationActions: [Deny]")
		awaitText(t, c, configMaps, named("marker", ""), "all are in force")
		for _, tc := range cases {
			object := "{apiVersion: v1, kind: ConfigMap, metadata: {name: " + tc.name + ", labels: {case: " + tc.name + "}}, data: {text: " + strings.Repeat("x", 1500) + "}}"
			admin.Send(t, "POST", configMaps, object).Want(t, tc.code)
		}
	})
}

func TestPoliciesAreCheckedWhenTheyAreMade(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, _ *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		for _, expression := range []string{"1 +", "object.a == unknown", "'text'", "params.a == 'b'", "authorizer.nothing()"} {
			quoted, err := json.Marshal(expression)
			if err != nil {
				t.Fatal(err)
			}
			for _, kind := range []string{"ValidatingAdmissionPolicy", "MutatingAdmissionPolicy"} {
				spec := "validations: [{expression: " + string(quoted) + "}]"
				collection := "validatingadmissionpolicies"
				if kind == "MutatingAdmissionPolicy" {
					spec = "reinvocationPolicy: Never, mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: " + string(quoted) + "}}]"
					collection = "mutatingadmissionpolicies"
				}
				admin.Send(t, "POST", registration+collection+"?dryRun=All", fmt.Sprintf(
					"{apiVersion: admissionregistration.k8s.io/v1, kind: %s, metadata: {name: trigate-test-check}, spec: {matchConstraints: {resourceRules: [{operations: [CREATE], apiGroups: [''], apiVersions: [v1], resources: [configmaps]}]}, %s}}", kind, spec)).Want(t, 422)
			}
		}
	})
}

func TestMutatingPoliciesChangeObjects(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		keepParameters(t, c)
		admin.Send(t, "POST", core(ns, "configmaps"), named("settings", "team: blue, path: extra")).Want(t, 201)
		mutatingPolicy := func(name, resources, spec, binding string) {
			admin.Make(t, registration+"mutatingadmissionpolicies", name, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: %s}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}
    resourceRules: [{operations: [CREATE, UPDATE], apiGroups: ["", apps], apiVersions: [v1], resources: [%s]}]
%s
`, name, ns, resources, indented(spec, "  ")))
			admin.Make(t, registration+"mutatingadmissionpolicybindings", name, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: %s}
spec:
  policyName: %s
%s
`, name, name, indented(binding, "  ")))
		}
		configMaps := core(ns, "configmaps")
		mutatingPolicy("trigate-test-a-apply", "configmaps", `
reinvocationPolicy: IfNeeded
paramKind: {apiVersion: v1, kind: ConfigMap}
matchConditions: [{name: chosen, expression: "object.metadata.name.startsWith('m')"}]
variables: [{name: team, expression: params.data.team}]
mutations:
- patchType: ApplyConfiguration
  applyConfiguration:
    expression: "Object{metadata: Object.metadata{labels: {'team': string(variables.team), 'by': string(request.userInfo.username), 'seen': has(object.data) && 'patched' in object.data ? 'patched' : 'plain'}}}"
`, "paramRef: {name: settings, namespace: "+ns+", parameterNotFoundAction: Deny}")
		mutatingPolicy("trigate-test-b-patch", "configmaps", `
reinvocationPolicy: Never
matchConditions: [{name: chosen, expression: "object.metadata.name.startsWith('m')"}]
mutations:
- patchType: JSONPatch
  jsonPatch: {expression: "[JSONPatch{op: 'add', path: '/data/patched', value: 'ü – ' + namespaceObject.metadata.name}, JSONPatch{op: 'test', path: '/metadata/name', value: object.metadata.name}, JSONPatch{op: 'add', path: '/metadata/annotations', value: {'can/update': string(authorizer.requestResource.check('update').allowed())}}]"}
`, "")
		framework.Eventually(t, "the mutating policies", func() error {
			answer, err := c.Admin(t).TrySend("POST", configMaps+"?dryRun=All", named("marker", "a: b"))
			if err == nil && (answer.String(t, "data", "patched") == "" || answer.String(t, "metadata", "labels", "team") == "") {
				err = fmt.Errorf("they are not in force: %s", answer.Body)
			}
			return err
		})
		created := admin.Send(t, "POST", configMaps, named("m1", "a: b")).Want(t, 201)
		if got := created.String(t, "metadata", "labels", "seen"); got != "patched" {
			t.Errorf("got label %q, want patched: the first policy is asked again", got)
		}
		if got, want := created.String(t, "data", "patched"), "ü – "+ns; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if got := created.String(t, "metadata", "annotations", "can/update"); got != "true" {
			t.Errorf("got annotation %q, want true", got)
		}
		admin.Send(t, "POST", configMaps, named("other", "a: b")).Want(t, 201)
		admin.Send(t, "PATCH", configMaps+"/m1?fieldManager=me&force=true", named("m1", "patched: mine"), framework.ServerSideApply).Want(t, 200)
		// Without data the patch has nothing to add to.
		admin.Send(t, "POST", configMaps, "{apiVersion: v1, kind: ConfigMap, metadata: {name: m2}}").WantMessage(t, 403,
			`policy 'trigate-test-b-patch' with binding 'trigate-test-b-patch' denied request: JSON Patch: add operation does not apply: doc is missing path: "/data/patched": missing value`)
		// Another has no right to update.
		c.Grant(t, framework.Grant{Name: "maker", User: "maker", Namespace: ns, Rules: rules(framework.May("create", "", "configmaps"))})
		created = s.As(t, c.User(t, "maker")).Send(t, "POST", configMaps, named("m3", "a: b")).Want(t, 201)
		if got := created.String(t, "metadata", "annotations", "can/update"); got != "false" {
			t.Errorf("got annotation %q, want false", got)
		}

		// Lists with keys are merged.
		mutatingPolicy("trigate-test-c-sidecar", "deployments", `
reinvocationPolicy: IfNeeded
mutations:
- patchType: ApplyConfiguration
  applyConfiguration:
    expression: >-
      Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{
      containers: [Object.spec.template.spec.containers{name: 'sidecar', image: 'example.com/sidecar:1', restartPolicy: 'Always'}]}}}}
`, "")
		framework.Eventually(t, "the sidecar policy", func() error {
			answer, err := c.Admin(t).TrySend("POST", group("apps/v1", ns, "deployments")+"?dryRun=All", deployment)
			if err == nil && answer.Field(t, "spec", "template", "spec", "containers", 1) == nil {
				err = fmt.Errorf("it is not in force: %s", answer.Body)
			}
			return err
		})
		deployed := admin.Send(t, "POST", group("apps/v1", ns, "deployments"), deployment).Want(t, 201)
		if got := deployed.String(t, "spec", "template", "spec", "containers", 1, "terminationMessagePath"); got != "/dev/termination-log" {
			t.Errorf("got termination message path %q for the sidecar, want the default", got)
		}

		// The parameter goes away.
		admin.Send(t, "DELETE", core(ns, "configmaps/settings"), "").Want(t, 200)
		awaitText(t, c, configMaps, named("marker", "a: b"), "no params found")
		admin.Send(t, "POST", configMaps, named("m4", "a: b")).WantMessage(t, 403,
			"policy 'trigate-test-a-apply' with binding 'trigate-test-a-apply' denied request: failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction")
	})
}

func TestPoliciesAndWebhooksTakeTheirTurns(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns := s.Namespace(t)
		hook := framework.StartRecorder(t)
		hook.Decide(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return framework.JSONPatch(`[{"op":"add","path":"/data/hooked","value":"yes"}]`)
		})
		webhook := hook.Mutating("turns", ns, configMaps)
		c.RegisterMutating(t, "trigate-test-turns", webhook)
		validatingPolicy(t, c, s, ns, "trigate-test-turns", "configmaps",
			"validations: [{expression: \"'hooked' in object.data && object.metadata.name != 'marker'\", message: seen}]", "validationActions: [Deny]")
		awaitText(t, c, core(ns, "configmaps"), named("marker", "a: b"), "seen")
		hook.Take()
		s.Admin(t).Send(t, "POST", core(ns, "configmaps"), configMap).Want(t, 201)
		s.Say("webhook requests", hook.Take())
	})
}
