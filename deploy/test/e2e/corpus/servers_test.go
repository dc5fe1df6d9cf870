package corpus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/trigate/trigate/deploy/test/framework"
)

// asFunc makes callers.
type asFunc func(tb testing.TB, config *rest.Config) *framework.Caller

// optionalPlugins are those that are off by default, but for AlwaysDeny.
var optionalPlugins = []string{
	"AlwaysAdmit", "AlwaysPullImages", "DenyServiceExternalIPs", "EventRateLimit", "ExtendedResourceToleration",
	"ImagePolicyWebhook", "LimitPodHardAntiAffinityTopology", "NamespaceAutoProvision", "NamespaceExists",
	"NodeRestriction", "OwnerReferencesPermissionEnforcement", "PodNodeSelector", "PodTolerationRestriction",
}

// The features and versions that some of the plugins need.
const (
	featureGates  = "--feature-gates=GenericWorkload=true,DRANodeAllocatableResources=true"
	runtimeConfig = "--runtime-config=scheduling.k8s.io/v1beta1=true"
)

// settings is the path of an AdmissionConfiguration.
type settings string

// stock are the arguments of kube-apiserver for these plugins. NamespaceLifecycle is
// off, since it leaves nothing to do for NamespaceExists.
func (s settings) stock(plugins []string) []string {
	return append(s.admission(plugins), featureGates, runtimeConfig)
}

// trigate are the arguments of the local runner that are the same as those of stock.
func (s settings) trigate(plugins []string) []string {
	args := []string{"--gateway-arg=" + featureGates, "--gateway-arg=" + runtimeConfig, "--admission-arg=" + featureGates, "--admission-arg=" + runtimeConfig}
	for _, arg := range s.admission(plugins) {
		args = append(args, "--admission-arg="+arg)
	}
	return args
}

func (s settings) admission(plugins []string) []string {
	return []string{
		"--enable-admission-plugins=" + strings.Join(plugins, ","),
		"--disable-admission-plugins=NamespaceLifecycle",
		"--admission-control-config-file=" + string(s),
	}
}

// writeSettings writes the configuration files of the plugins, and starts the webhook
// that one of them is about.
func writeSettings(t *testing.T) settings {
	t.Helper()
	images := framework.StartWebhook(t, http.HandlerFunc(reviewImages))
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("images-ca.crt", string(images.CABundle))
	write("images.kubeconfig", fmt.Sprintf(imagesKubeconfig, images.URL))
	write("images.yaml", fmt.Sprintf(imagesConfig, filepath.Join(dir, "images.kubeconfig")))
	write("events.yaml", eventsConfig)
	write("selectors.yaml", selectorsConfig)
	write("admission.yaml", admissionConfig)
	return settings(filepath.Join(dir, "admission.yaml"))
}

const (
	imagesKubeconfig = `
apiVersion: v1
kind: Config
clusters:
- {name: images, cluster: {server: %s/images, certificate-authority: images-ca.crt}}
users:
- {name: api, user: {token: an-image-policy-token}}
contexts:
- {name: images, context: {cluster: images, user: api}}
current-context: images
`
	imagesConfig = `
imagePolicy: {kubeConfigFile: %s, allowTTL: 50, denyTTL: 50, retryBackoff: 1, defaultAllow: true}
`
	// One event, and then one in a second, of one source about one object.
	eventsConfig = `
apiVersion: eventratelimit.admission.k8s.io/v1alpha1
kind: Configuration
limits:
- {type: SourceAndObject, qps: 1, burst: 1, cacheSize: 100}
`
	selectorsConfig = `
podNodeSelectorPluginConfig:
  clusterDefaultNodeSelector: ""
  corpus-allowed-nodes: pool=blue,disk=ssd
`
	admissionConfig = `
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- {name: ImagePolicyWebhook, path: images.yaml}
- {name: EventRateLimit, path: events.yaml}
- {name: PodNodeSelector, path: selectors.yaml}
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults: {enforce: baseline, audit: restricted, warn: restricted}
    exemptions: {namespaces: [corpus-exempt], usernames: [exempt-user], runtimeClasses: [exempt-class]}
- name: PodTolerationRestriction
  configuration:
    apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1
    kind: Configuration
    default:
    - {key: corpus-default, operator: Exists, effect: NoSchedule}
- name: ResourceQuota
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: ResourceQuotaConfiguration
    limitedResources:
    - {resource: services, matchContains: [services.loadbalancers]}
    - apiGroup: ""
      resource: pods
      matchScopes: [{scopeName: PriorityClass, operator: In, values: [system-cluster-critical]}]
`
)

// reviewImages answers the reviews of ImagePolicyWebhook: by the names of the images.
func reviewImages(w http.ResponseWriter, req *http.Request) {
	var review imagepolicyv1alpha1.ImageReview
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	status := imagepolicyv1alpha1.ImageReviewStatus{Allowed: true, AuditAnnotations: map[string]string{
		"asked": fmt.Sprintf("%v %v in %s, with a token: %v", review.Spec.Containers, review.Spec.Annotations, review.Spec.Namespace,
			req.Header.Get("Authorization") == "Bearer an-image-policy-token"),
	}}
	for _, container := range review.Spec.Containers {
		switch {
		case strings.Contains(container.Image, "broken"):
			http.Error(w, "the reviewer is broken", http.StatusTeapot)
			return
		case strings.Contains(container.Image, "unsaid"):
			status.Allowed = false
		case strings.Contains(container.Image, "forbidden"):
			status.Allowed, status.Reason = false, "the image "+container.Image+" is forbidden"
		}
	}
	review.Status = status
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(review); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// startWebhook serves an admission webhook that does what the path says.
func startWebhook(t *testing.T) *framework.Webhook {
	t.Helper()
	mux := http.NewServeMux()
	for path, decide := range map[string]func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse{
		"/pass": framework.Pass,
		"/deny": func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{
				Code: http.StatusPaymentRequired, Reason: "Unpaid", Message: seen(r) + " is to be paid for",
				Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "Unpaid", Field: "spec", Message: "too dear"}}},
			}}
		},
		"/warn": func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return &admissionv1.AdmissionResponse{
				Allowed: true, Warnings: []string{"the webhook has seen " + seen(r), "and says so twice", "and says so twice"},
				AuditAnnotations: map[string]string{"seen": seen(r)},
			}
		},
		"/label": func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			response := framework.JSONPatch(`[{"op":"add","path":"/metadata/annotations","value":{"corpus/webhook":"` + seen(r) + `"}}]`)
			response.AuditAnnotations = map[string]string{"seen": seen(r)}
			return response
		},
		"/unlabel": func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return framework.JSONPatch(`[{"op":"remove","path":"/metadata/labels"}]`)
		},
		"/unknown": func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return framework.JSONPatch(`[{"op":"add","path":"/unheardOf","value":true}]`)
		},
		"/nonsense": func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return framework.JSONPatch(`[{"op":"remove","path":"/not/there"}]`)
		},
	} {
		mux.Handle(path, framework.Admission(decide))
	}
	mux.HandleFunc("/fail", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the webhook is broken", http.StatusInternalServerError)
	})
	return framework.StartWebhook(t, mux)
}

// seen is what a webhook sees of a request.
func seen(r *admissionv1.AdmissionRequest) string {
	text := fmt.Sprintf("%s of %s %s", r.Operation, r.Resource.Resource, r.Name)
	if r.SubResource != "" {
		text += "/" + r.SubResource
	}
	if ptr.Deref(r.DryRun, false) {
		text += " (dry)"
	}
	var kinds []string
	for _, object := range [][]byte{r.Object.Raw, r.OldObject.Raw, r.Options.Raw} {
		var meta metav1.TypeMeta
		if json.Unmarshal(object, &meta) != nil {
			meta.Kind = "nothing"
		}
		kinds = append(kinds, meta.Kind)
	}
	return text + ": " + strings.Join(kinds, ", ")
}

// makeNamespace makes a namespace and waits for what controllers put there, so that
// they do not write there any more.
func (p *player) makeNamespace(t *testing.T, namespace namespace) {
	t.Helper()
	client := p.cluster.Client(t).CoreV1()
	_, err := client.Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: namespace.Name, Labels: namespace.Labels, Annotations: namespace.Annotations},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("%s: making the namespace %s: %v", p.cluster.Name, namespace.Name, err)
	}
	framework.Eventually(t, "default service account and CA bundle of "+namespace.Name, func() error {
		_, accountErr := client.ServiceAccounts(namespace.Name).Get(context.Background(), "default", metav1.GetOptions{})
		_, bundleErr := client.ConfigMaps(namespace.Name).Get(context.Background(), "kube-root-ca.crt", metav1.GetOptions{})
		return errors.Join(accountErr, bundleErr)
	})
}
