package chain

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/trigate/trigate/services/authz/internal/convert"
	"github.com/trigate/trigate/services/internal/apitest"
	"github.com/trigate/trigate/services/internal/process"
	"github.com/trigate/trigate/services/internal/servetest"
)

func TestMain(m *testing.M) { servetest.Main(m) }

var (
	jane = &user.DefaultInfo{Name: "jane", Groups: []string{user.AllAuthenticated}}
	paul = &user.DefaultInfo{Name: "paul", Groups: []string{user.AllAuthenticated}}
	root = &user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}}
)

func getPod(u user.Info) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{User: u, Verb: "get", Namespace: "ns", APIVersion: "v1", Resource: "pods", Name: "web", ResourceRequest: true}
}

func write(t *testing.T, path, content string) string {
	t.Helper()
	servetest.WriteFile(t, path, []byte(content))
	return path
}

func abacPolicy(t *testing.T) string {
	t.Helper()
	return write(t, filepath.Join(t.TempDir(), "policy.jsonl"),
		`{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"jane","resource":"pods","namespace":"ns"}}`)
}

// fromModes builds a chain that needs no informers.
func fromModes(t *testing.T, change func(*kubeoptions.BuiltInAuthorizationOptions), modes ...string) *Chain {
	t.Helper()
	options := kubeoptions.NewBuiltInAuthorizationOptions()
	options.Modes = modes
	if change != nil {
		change(options)
	}
	upstream, err := options.ToAuthorizationConfig(nil)
	if err != nil {
		t.Fatalf("ToAuthorizationConfig() = %v", err)
	}
	c, err := New(t.Context(), Config{Upstream: *upstream, ServerID: t.Name()})
	if err != nil {
		t.Fatalf("New() = %v", err)
	}
	return c
}

func TestRecord(t *testing.T) {
	policy := abacPolicy(t)
	c := fromModes(t, func(o *kubeoptions.BuiltInAuthorizationOptions) { o.PolicyFile = policy }, "ABAC", "AlwaysDeny")
	for name, tc := range map[string]struct {
		user user.Info
		want []convert.Say
	}{
		"the first decides": {user: jane, want: []convert.Say{
			{Name: "abac", Decision: authorizer.DecisionAllow},
		}},
		"nobody decides": {user: paul, want: []convert.Say{
			{Name: "abac", Decision: authorizer.DecisionNoOpinion, Reason: "No policy matched."},
			{Name: "alwaysdeny", Decision: authorizer.DecisionNoOpinion, Reason: "Everything is forbidden."},
		}},
		"system:masters": {user: root, want: []convert.Say{
			{Name: "kubernetes.io/system-privileged-group", Decision: authorizer.DecisionAllow},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, sayings := Record(t.Context())
			decision, reason, err := c.Authorize(ctx, getPod(tc.user))
			if diff := cmp.Diff(tc.want, sayings.All()); diff != "" {
				t.Errorf("sayings (-want +got):\n%s", diff)
			}
			if last := tc.want[len(tc.want)-1]; decision != last.Decision || err != nil {
				t.Errorf("Authorize() = %v, %q, %v, want %v", decision, reason, err, last.Decision)
			}
			// Without a record the answer is the same.
			again, reasonAgain, err := c.Authorize(t.Context(), getPod(tc.user))
			if again != decision || reasonAgain != reason || err != nil {
				t.Errorf("Authorize() without a record = %v, %q, %v, want %v, %q", again, reasonAgain, err, decision, reason)
			}
		})
	}
}

func TestNewSaysWhichAuthorizer(t *testing.T) {
	options := kubeoptions.NewBuiltInAuthorizationOptions()
	options.Modes = []string{"AlwaysDeny", "ABAC"}
	options.PolicyFile = filepath.Join(t.TempDir(), "none")
	upstream, err := options.ToAuthorizationConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(t.Context(), Config{Upstream: *upstream})
	var of *AuthorizerError
	if !errors.As(err, &of) || of.Type != "ABAC" || of.Name != "abac" || !strings.Contains(err.Error(), options.PolicyFile) {
		t.Errorf("New() = %v, want an error about ABAC and its file", err)
	}
}

// TestReload writes one configuration after the other, good ones and bad ones.
func TestReload(t *testing.T) {
	dir := t.TempDir()
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","status":{"allowed":true,"reason":"by the webhook"}}`))
	}))
	t.Cleanup(hook.Close)
	kubeconfig := write(t, filepath.Join(dir, "hook"), fmt.Sprintf(
		`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: %q}}]}`, hook.URL))
	configuration := func(authorizers ...string) string {
		return "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n- " + strings.Join(authorizers, "\n- ") + "\n"
	}
	webhook := func(kubeconfig string) string {
		return "{type: Webhook, name: hook, webhook: {timeout: 10s, subjectAccessReviewVersion: v1, matchConditionSubjectAccessReviewVersion: v1, " +
			"failurePolicy: Deny, connectionInfo: {type: KubeConfigFile, kubeConfigFile: " + kubeconfig + "}}}"
	}
	const deny = "{type: AlwaysDeny, name: alwaysdeny}"
	path := write(t, filepath.Join(dir, "config.yaml"), configuration(deny))
	c := fromModes(t, func(o *kubeoptions.BuiltInAuthorizationOptions) { o.AuthorizationConfigurationFile = path })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }() // The end of the test waits for it.

	for i, step := range []struct {
		name    string
		content string
		// wantFailure is whether the configuration cannot be used.
		wantFailure bool
		wantReason  string
	}{
		{name: "a webhook is added", content: configuration(webhook(kubeconfig), deny), wantReason: "by the webhook"},
		{name: "no configuration", content: "kind: [", wantFailure: true, wantReason: "by the webhook"},
		{name: "a type goes away", content: configuration(webhook(kubeconfig)), wantFailure: true, wantReason: "by the webhook"},
		{name: "a type is added", content: configuration("{type: AlwaysAllow, name: alwaysallow}", deny), wantFailure: true, wantReason: "by the webhook"},
		{name: "a webhook without its file", content: configuration(webhook(kubeconfig+".none"), deny), wantFailure: true, wantReason: "by the webhook"},
		{name: "the webhook goes away", content: configuration(deny), wantReason: "alwaysdeny: Everything is forbidden."},
	} {
		failures, successes := reloads(t, "failure"), reloads(t, "success")
		digest, replaced := c.Configuration()
		write(t, path, step.content)
		servetest.Eventually(t, func() error {
			if reloads(t, "failure")+reloads(t, "success") == failures+successes {
				return errors.New("nothing was reloaded")
			}
			return nil
		})
		if failed := reloads(t, "failure") > failures; failed != step.wantFailure {
			t.Errorf("step %d, %s: failed = %v, want %v", i, step.name, failed, step.wantFailure)
		}
		select {
		case <-replaced:
		default:
			if !step.wantFailure {
				t.Errorf("step %d, %s: the old configuration is said to be in force", i, step.name)
			}
		}
		if now, _ := c.Configuration(); (now != digest) == step.wantFailure {
			t.Errorf("step %d, %s: the digest was %s and is %s", i, step.name, digest, now)
		}
		if waits := strings.Contains(step.wantReason, "webhook"); c.MayWait() != waits {
			t.Errorf("step %d, %s: MayWait() = %v, want %v", i, step.name, c.MayWait(), waits)
		}
		if _, reason, err := c.Authorize(t.Context(), getPod(jane)); reason != step.wantReason || err != nil {
			t.Errorf("step %d, %s: Authorize() = %q, %v, want %q", i, step.name, reason, err, step.wantReason)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

// reloads returns upstream's count of reloads with a result.
func reloads(t *testing.T, status string) float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, family := range families {
		if family.GetName() != "apiserver_authorization_config_controller_automatic_reloads_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			if testutil.LabelsMatch(metric, map[string]string{"status": status}) {
				sum += metric.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func TestRunWithoutAFile(t *testing.T) {
	if err := fromModes(t, nil, "AlwaysDeny").Run(t.Context()); err != nil {
		t.Errorf("Run() = %v, want nil at once", err)
	}
}

// TestHandlersSynced has nodes ask as soon as the handlers have synced.
func TestHandlersSynced(t *testing.T) {
	api := apitest.New(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
		Spec: corev1.PodSpec{NodeName: "node-1", Volumes: []corev1.Volume{{
			Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "mine"}},
		}}},
	})
	restConfig, err := process.RESTConfig(api.Kubeconfig(t), "test")
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		t.Fatal(err)
	}
	factory := process.NewInformerFactory(client)
	options := kubeoptions.NewBuiltInAuthorizationOptions()
	options.Modes = []string{"Node"}
	upstream, err := options.ToAuthorizationConfig(factory)
	if err != nil {
		t.Fatal(err)
	}
	if !Has(upstream.AuthorizationConfiguration, "Node") || Has(upstream.AuthorizationConfiguration, "RBAC") {
		t.Error("Has() is wrong")
	}
	c, err := New(t.Context(), Config{Upstream: *upstream, ServerID: "test"})
	if err != nil {
		t.Fatal(err)
	}
	synced := c.HandlersSynced()
	// Pods, persistent volumes and attachments at least.
	if len(synced) < 3 {
		t.Errorf("%d handlers are known, want 3 at least", len(synced))
	}
	for i, done := range synced {
		if done() {
			t.Errorf("handler %d has synced before the informers started", i)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		factory.Shutdown()
	})
	factory.StartWithContext(ctx)
	servetest.Eventually(t, func() error {
		for i, done := range synced {
			if !done() {
				return fmt.Errorf("handler %d has not synced", i)
			}
		}
		return nil
	})
	question := authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "system:node:node-1", Groups: []string{user.NodesGroup}},
		Verb: "get", Namespace: "ns", APIVersion: "v1", Resource: "secrets", Name: "mine", ResourceRequest: true,
	}
	if decision, reason, err := c.Authorize(t.Context(), question); decision != authorizer.DecisionAllow {
		t.Errorf("Authorize() = %v, %q, %v, want Allow", decision, reason, err)
	}
}
