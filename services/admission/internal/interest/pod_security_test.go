package interest_test

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/utils/ptr"

	"github.com/trigate/trigate/services/admission/internal/interest"
)

// podSecurityPrefix is what the keys of upstream's labels begin with.
const podSecurityPrefix = "pod-security.kubernetes.io/"

// podMakers are objects of each kind that has a Pod in it, by the resource as in rules. The
// Pod may do everything.
func podMakers() map[string]runtime.Object {
	template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{
		{Name: "c", Image: "i", SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)}},
	}}}
	return map[string]runtime.Object{
		"/podtemplates":           &corev1.PodTemplate{Template: template},
		"/replicationcontrollers": &corev1.ReplicationController{Spec: corev1.ReplicationControllerSpec{Template: &template}},
		"apps/daemonsets":         &appsv1.DaemonSet{Spec: appsv1.DaemonSetSpec{Template: template}},
		"apps/deployments":        &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Template: template}},
		"apps/replicasets":        &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Template: template}},
		"apps/statefulsets":       &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Template: template}},
		"batch/cronjobs":          &batchv1.CronJob{Spec: batchv1.CronJobSpec{JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template}}}},
		"batch/jobs":              &batchv1.Job{Spec: batchv1.JobSpec{Template: template}},
	}
}

func podSecurityOf(t *testing.T, plugins []interest.Plugin) interest.Plugin {
	t.Helper()
	i := slices.IndexFunc(plugins, func(plugin interest.Plugin) bool { return plugin.Name == "PodSecurity" })
	if i < 0 {
		t.Fatal("PodSecurity is not on")
	}
	return plugins[i]
}

// TestPodSecurityGoesByLabels has upstream's plugin judge what makes Pods that may do
// everything. In a namespace without any of its labels it says nothing at all, which is why
// there its rules for them do not match; with any of them it does.
func TestPodSecurityGoesByLabels(t *testing.T) {
	var namespaces []runtime.Object
	named := func(name string, labels map[string]string) {
		namespaces = append(namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
	}
	named("plain", map[string]string{"kubernetes.io/metadata.name": "plain", "security.kubernetes.io/warn": "restricted"})
	named("warns", map[string]string{podSecurityPrefix + "warn": "baseline"})
	named("audits", map[string]string{podSecurityPrefix + "audit": "restricted"})
	named("broken", map[string]string{podSecurityPrefix + "warn-version": "soon"})
	plugin := podSecurityOf(t, members(t, "", namespaces...))
	validating, ok := plugin.Handler.(admission.ValidationInterface)
	if !ok {
		t.Fatal("PodSecurity does not validate")
	}
	makers := podMakers()
	for _, rule := range interestOf(t, "", plugin).GetValidating() {
		if rule.GetNamespaceLabelPrefix() == "" {
			continue
		}
		if rule.GetNamespaceLabelPrefix() != podSecurityPrefix {
			t.Errorf("the prefix is %q, want upstream's", rule.GetNamespaceLabelPrefix())
		}
		for _, resource := range rule.GetResources() {
			group := rule.GetApiGroups()[0]
			object := makers[group+"/"+resource]
			if object == nil {
				t.Errorf("%s of %q goes by labels, and is not tried here", resource, group)
				continue
			}
			delete(makers, group+"/"+resource)
			for _, in := range []string{"plain", "warns", "audits", "broken"} {
				for _, operation := range []admission.Operation{admission.Create, admission.Update} {
					said, err := outcomeOf(t, validating, ofInternal(t, object, group, resource, in, operation))
					if err != nil {
						t.Errorf("%s %s in %s: Validate() = %v, want nil", operation, resource, in, err)
					}
					if silent := len(said.Warnings)+len(said.Annotations) == 0; silent != (in == "plain") {
						t.Errorf("%s %s in %s: said %v", operation, resource, in, said)
					}
				}
			}
		}
	}
	if len(makers) > 0 {
		t.Errorf("without a rule that goes by labels: %v", makers)
	}
}

func ofInternal(t *testing.T, object runtime.Object, group, resource, in string, operation admission.Operation) admission.Attributes {
	t.Helper()
	internal, err := legacyscheme.Scheme.ConvertToVersion(object, schema.GroupVersion{Group: group, Version: runtime.APIVersionInternal})
	if err != nil {
		t.Fatal(err)
	}
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(object)
	if err != nil {
		t.Fatal(err)
	}
	var old runtime.Object
	if operation == admission.Update {
		old = internal.DeepCopyObject()
	}
	return admission.NewAttributesRecord(internal, old, kinds[0], in, "a", schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}, "", operation, nil, false, people[0])
}

// TestPodSecurityConfigured configures the plugin. Where it speaks of what makes Pods in a
// namespace without labels too, its rules may not go by them. An exempt class makes it speak
// of those that name the class, which the rules cannot tell.
func TestPodSecurityConfigured(t *testing.T) {
	for name, test := range map[string]struct {
		configuration    string
		speaks, byLabels bool
	}{
		"enforces":             {"defaults: {enforce: restricted}", false, true},
		"says what is default": {"defaults: {enforce: privileged, warn: privileged, audit: privileged}", false, true},
		"warns":                {"defaults: {warn: baseline}", true, false},
		"audits":               {"defaults: {audit: restricted}", true, false},
		"exempts a namespace":  {"exemptions: {namespaces: [plain]}", true, false},
		"exempts a user":       {"exemptions: {usernames: [ann]}", true, false},
		"exempts a class":      {"exemptions: {runtimeClasses: [c]}", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			file := write(t, "admission.yaml", "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: PodSecurity\n"+
				"  configuration: {apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, "+test.configuration+"}\n")
			plugin := podSecurityOf(t, members(t, file, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "plain"}}))
			validating, ok := plugin.Handler.(admission.ValidationInterface)
			if !ok {
				t.Fatal("PodSecurity does not validate")
			}
			said, err := outcomeOf(t, validating, ofInternal(t, podMakers()["apps/deployments"], "apps", "deployments", "plain", admission.Create))
			if err != nil || (len(said.Warnings)+len(said.Annotations) > 0) != test.speaks {
				t.Errorf("of a Deployment it says %v, %v; want anything: %v", said, err, test.speaks)
			}
			byLabels := 0
			for _, rule := range interestOf(t, file, plugin).GetValidating() {
				if rule.GetNamespaceLabelPrefix() != "" {
					byLabels++
				}
			}
			if (byLabels > 0) != test.byLabels {
				t.Errorf("%d rules go by labels, want any = %v", byLabels, test.byLabels)
			}
		})
	}
}
