// Package aggregation tests an extension API server behind the control plane: the
// stock k8s.io/sample-apiserver, which asks the control plane who its callers are
// and what they may do.
package aggregation

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"

	"github.com/trigate/trigate/deploy/pki"
	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

// both runs test on both control planes, which route to extension API servers as
// their Service says and not to EndpointSlices: those may not hold the loopback
// address, and a machine need not have another.
func both(t *testing.T, test func(t *testing.T, c *framework.Cluster)) {
	const routing = "--enable-aggregator-routing=false"
	t.Run(framework.Stock, func(t *testing.T) {
		test(t, framework.StartStock(t, framework.StockOptions{Args: []string{routing}}))
	})
	t.Run(framework.Trigate, func(t *testing.T) {
		test(t, framework.StartTrigate(t, framework.TrigateOptions{Args: []string{"--gateway-arg=" + routing}}))
	})
}

func TestSampleAPIServer(t *testing.T) {
	both(t, func(t *testing.T, c *framework.Cluster) {
		server := startSample(t, c)
		admin := c.Admin(t)
		namespace := c.Namespace(t)
		flunders := "/apis/wardle.example.com/v1alpha1/namespaces/" + namespace + "/flunders"
		const fischers = "/apis/wardle.example.com/v1alpha1/fischers"

		t.Run("its resources are discovered and described", func(t *testing.T) {
			got := strings.Fields(c.MustKubectl(t, "api-resources", "--api-group=wardle.example.com", "--output=name"))
			if diff := cmp.Diff([]string{"fischers.wardle.example.com", "flunders.wardle.example.com"}, got); diff != "" {
				t.Errorf("api-resources (-want +got):\n%s", diff)
			}
			framework.Eventually(t, "description of flunders", func() error {
				result := c.Kubectl(t, "explain", "flunders", "--api-version=wardle.example.com/v1alpha1", "--recursive")
				if !strings.Contains(result.Stdout, "referenceType") {
					return fmt.Errorf("kubectl explain: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
				}
				return nil
			})
		})

		t.Run("its objects are kept", func(t *testing.T) {
			answer := admin.Send(t, http.MethodPost, flunders, flunder("first", "reference: other")).Want(t, http.StatusCreated)
			if got := answer.String(t, "spec", "referenceType"); got != "Flunder" {
				t.Errorf("spec.referenceType = %q, want its default", got)
			}
			admin.Send(t, http.MethodGet, "/apis/wardle.example.com/v1beta1/namespaces/"+namespace+"/flunders/first", "").Want(t, http.StatusOK)
			admin.Send(t, http.MethodPatch, flunders+"/first", `{"spec": {"reference": "third"}}`, framework.MergePatch).Want(t, http.StatusOK)
			admin.Send(t, http.MethodPost, "/apis/wardle.example.com/v1beta1/namespaces/"+namespace+"/flunders",
				"{apiVersion: wardle.example.com/v1beta1, kind: Flunder, metadata: {name: bad}, spec: {flunderReference: a, fischerReference: b}}").
				Want(t, http.StatusUnprocessableEntity)
			watch := c.KubectlStream(t, "get", "flunders", "--namespace", namespace, "--watch", "--output=name")
			if got, want := watch.Next(t), "flunder.wardle.example.com/first"; got != want {
				t.Errorf("kubectl get --watch printed %q, want %q", got, want)
			}
			admin.Send(t, http.MethodPost, flunders, flunder("second", "")).Want(t, http.StatusCreated)
			if got, want := watch.Next(t), "flunder.wardle.example.com/second"; got != want {
				t.Errorf("kubectl get --watch printed %q, want %q", got, want)
			}
		})

		t.Run("its own admission decides, with what it reads from us", func(t *testing.T) {
			admin.Send(t, http.MethodPost, "/apis/wardle.example.com/v1alpha1/namespaces/none/flunders", flunder("a", "")).
				WantMessage(t, http.StatusNotFound, `namespaces "none" not found`)
			admin.Send(t, http.MethodPost, fischers,
				"{apiVersion: wardle.example.com/v1alpha1, kind: Fischer, metadata: {name: ban}, disallowedFlunders: [banned]}").Want(t, http.StatusCreated)
			framework.Eventually(t, "the ban", func() error {
				answer := admin.Send(t, http.MethodPost, flunders+"?dryRun=All", flunder("banned", ""))
				const want = `flunders.wardle.example.com "banned" is forbidden: this name may not be used, please change the resource name`
				if got := answer.String(t, "message"); answer.Code != http.StatusForbidden || got != want {
					return fmt.Errorf("got %d %q, want 403 %q", answer.Code, got, want)
				}
				return nil
			})
		})

		// Each way to the server: through the control plane, which tells it who is calling,
		// and straight, where it asks the control plane.
		ways := map[string]func(testing.TB, *rest.Config) *framework.Caller{"through": c.As, "straight": server.straight}
		t.Run("users may do what RBAC lets them", func(t *testing.T) {
			for way, as := range ways {
				t.Run(way, func(t *testing.T) {
					user := "jane-" + way
					with, without := as(t, c.User(t, user, "dev")), as(t, c.User(t, "john", "dev"))
					wantForbidden(t, with, flunders, user, namespace)
					grant(t, c, user, namespace)
					awaitAllowed(t, with, flunders)
					wantForbidden(t, without, flunders, "john", namespace)
					with.Send(t, http.MethodDelete, flunders+"/first", "").WantMessage(t, http.StatusForbidden, fmt.Sprintf(
						`flunders.wardle.example.com "first" is forbidden: User %q cannot delete resource "flunders" in API group "wardle.example.com" in the namespace %q`, user, namespace))
					with.Send(t, http.MethodGet, "/apis/wardle.example.com/v1alpha1/flunders", "").Want(t, http.StatusForbidden)
					with.Send(t, http.MethodGet, fischers, "").Want(t, http.StatusForbidden)
					server.wantUser(t, user, "dev", "system:authenticated")
				})
			}
		})

		t.Run("service accounts are known by their tokens", func(t *testing.T) {
			for way, as := range ways {
				t.Run(way, func(t *testing.T) {
					account := "worker-" + way
					c.MustKubectl(t, "create", "serviceaccount", account, "--namespace", namespace)
					user := "system:serviceaccount:" + namespace + ":" + account
					who := as(t, c.Token(t, c.ServiceAccountToken(t, namespace, account)))
					wantForbidden(t, who, flunders, user, namespace)
					grant(t, c, user, namespace)
					awaitAllowed(t, who, flunders)
					server.wantUser(t, user, "system:serviceaccounts", "system:serviceaccounts:"+namespace, "system:authenticated")
					as(t, c.Token(t, "nobody")).Send(t, http.MethodGet, flunders, "").WantMessage(t, http.StatusUnauthorized, "Unauthorized")
				})
			}
		})

		t.Run("nobody speaks for others", func(t *testing.T) {
			// The headers by which the control plane names callers mean nothing from others.
			forged := []framework.RequestOption{
				framework.Header("X-Remote-User", "kubernetes-admin"), framework.Header("X-Remote-Group", "system:masters"),
			}
			for way, as := range ways {
				answer := as(t, c.User(t, "john")).Send(t, http.MethodGet, flunders, "", forged...)
				if answer.Code != http.StatusForbidden || !strings.Contains(string(answer.Body), `User \"john\"`) {
					t.Errorf("%s: got %d %s, want john to be forbidden", way, answer.Code, answer.Body)
				}
			}
		})

		t.Run("without it only its own resources are away", func(t *testing.T) {
			server.program.Kill(t)
			framework.Eventually(t, "the APIService is unavailable", func() error {
				if answer := admin.Send(t, http.MethodGet, flunders, ""); answer.Code != http.StatusServiceUnavailable {
					return fmt.Errorf("got code %d, want 503", answer.Code)
				}
				return nil
			})
			admin.Send(t, http.MethodGet, "/api/v1/namespaces/"+namespace+"/configmaps", "").Want(t, http.StatusOK)
			admin.Send(t, http.MethodGet, "/readyz", "").Want(t, http.StatusOK)
			admin.Send(t, http.MethodDelete, "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.wardle.example.com", "").Want(t, http.StatusOK)
			admin.Send(t, http.MethodDelete, "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.wardle.example.com", "").Want(t, http.StatusOK)
			framework.Eventually(t, "the group is gone", func() error {
				if answer := admin.Send(t, http.MethodGet, flunders, ""); answer.Code != http.StatusNotFound {
					return fmt.Errorf("got code %d, want 404", answer.Code)
				}
				return nil
			})
		})
	})
}

func flunder(name, spec string) string {
	return "{apiVersion: wardle.example.com/v1alpha1, kind: Flunder, metadata: {name: " + name + "}, spec: {" + spec + "}}"
}

func grant(t *testing.T, c *framework.Cluster, user, namespace string) {
	t.Helper()
	c.Grant(t, framework.Grant{
		Name: "flunders-" + strings.ReplaceAll(user, ":", "-"), User: user, Namespace: namespace,
		Rules: []rbacv1.PolicyRule{framework.May("get,list", "wardle.example.com", "flunders")},
	})
}

func wantForbidden(t *testing.T, who *framework.Caller, flunders, user, namespace string) {
	t.Helper()
	who.Send(t, http.MethodGet, flunders, "").WantMessage(t, http.StatusForbidden, fmt.Sprintf(
		`flunders.wardle.example.com is forbidden: User %q cannot list resource "flunders" in API group "wardle.example.com" in the namespace %q`, user, namespace))
}

// awaitAllowed waits for the end of what the extension API server remembers.
func awaitAllowed(t *testing.T, who *framework.Caller, flunders string) {
	t.Helper()
	framework.Eventually(t, "right to list flunders", func() error {
		if answer := who.Send(t, http.MethodGet, flunders, ""); answer.Code != http.StatusOK {
			return fmt.Errorf("got code %d: %s", answer.Code, answer.Body)
		}
		return nil
	})
}

// sample is a running sample-apiserver.
type sample struct {
	cluster  *framework.Cluster
	program  *framework.Program
	url      string
	caBundle []byte
	auditLog string
}

// The service account of the extension API server. Its rights are those that its own
// manifests give it.
const (
	sampleNamespace = "wardle"
	sampleUser      = "system:serviceaccount:wardle:apiserver"
	sampleManifest  = `
apiVersion: v1
kind: Namespace
metadata: {name: wardle}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: apiserver, namespace: wardle}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "wardle:system:auth-delegator"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:auth-delegator"}
subjects: [{kind: ServiceAccount, name: apiserver, namespace: wardle}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: wardle-auth-reader, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{kind: ServiceAccount, name: apiserver, namespace: wardle}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: aggregated-apiserver-clusterrole}
rules:
- {apiGroups: [""], resources: [namespaces], verbs: [get, watch, list]}
- apiGroups: [admissionregistration.k8s.io]
  resources: [mutatingwebhookconfigurations, validatingwebhookconfigurations, validatingadmissionpolicies, validatingadmissionpolicybindings, mutatingadmissionpolicies, mutatingadmissionpolicybindings]
  verbs: [get, watch, list]
- {apiGroups: [flowcontrol.apiserver.k8s.io], resources: [prioritylevelconfigurations, flowschemas], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: sample-apiserver-clusterrolebinding}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: aggregated-apiserver-clusterrole}
subjects: [{kind: ServiceAccount, name: apiserver, namespace: wardle}]
`
)

// startSample runs sample-apiserver and waits until the control plane serves its API.
func startSample(t *testing.T, c *framework.Cluster) *sample {
	t.Helper()
	c.MustKubectlInput(t, sampleManifest, "apply", "--server-side", "--filename", "-")
	for _, right := range [][]string{
		{"create", "tokenreviews.authentication.k8s.io"},
		{"get", "configmaps/extension-apiserver-authentication", "--namespace=kube-system"},
		{"list", "namespaces"},
	} {
		framework.Eventually(t, "rights of the server", func() error {
			if result := c.Kubectl(t, append([]string{"auth", "can-i", "--as", sampleUser}, right...)...); result.Code != 0 {
				return fmt.Errorf("it may not %v: %s%s", right, result.Stdout, result.Stderr)
			}
			return nil
		})
	}

	dir := t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	port := framework.FreePort(t)
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey("api."+sampleNamespace+".svc", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &sample{
		cluster:  c,
		url:      "https://127.0.0.1:" + strconv.Itoa(port),
		caBundle: certPEM,
		auditLog: filepath.Join(dir, "audit.log"),
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(tokenKubeconfig(c.Config(t), c.ServiceAccountToken(t, sampleNamespace, "apiserver")), kubeconfig); err != nil {
		t.Fatal(err)
	}
	policy := file("audit-policy.yaml", []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"))
	s.program = framework.StartProgram(t, "sample-apiserver",
		"--bind-address=127.0.0.1",
		"--secure-port="+strconv.Itoa(port),
		"--tls-cert-file="+file("tls.crt", certPEM),
		"--tls-private-key-file="+file("tls.key", keyPEM),
		"--etcd-servers="+c.StartEtcd(t),
		"--etcd-cafile="+c.PKI.Cert(pki.EtcdCA),
		"--etcd-certfile="+c.PKI.Cert(pki.EtcdClient),
		"--etcd-keyfile="+c.PKI.Key(pki.EtcdClient),
		"--kubeconfig="+kubeconfig,
		"--authentication-kubeconfig="+kubeconfig,
		"--authorization-kubeconfig="+kubeconfig,
		// What it has asked it may remember, but not for the ten seconds of the default.
		"--authentication-token-webhook-cache-ttl=1s",
		"--authorization-webhook-cache-authorized-ttl=1s",
		"--authorization-webhook-cache-unauthorized-ttl=1s",
		"--audit-policy-file="+policy,
		"--audit-log-path="+s.auditLog,
	)
	c.MustKubectlInput(t, s.registration(port), "apply", "--server-side", "--filename", "-")
	framework.Eventually(t, "APIServices", func() error {
		if err := s.program.Ended(); err != nil {
			t.Fatal(err)
		}
		var errs []error
		for _, version := range []string{"v1alpha1", "v1beta1"} {
			const available = `jsonpath={.status.conditions[?(@.type=="Available")]}`
			got := c.MustKubectl(t, "get", "apiservice", version+".wardle.example.com", "--output", available)
			if !strings.Contains(got, `"status":"True"`) {
				errs = append(errs, fmt.Errorf("%s: %s", version, got))
			}
		}
		return errors.Join(errs...)
	})
	return s
}

// registration is the Service of the extension API server and its APIServices.
func (s *sample) registration(port int) string {
	manifest := fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: api, namespace: %s}
spec: {type: ExternalName, externalName: 127.0.0.1}
`, sampleNamespace)
	for priority, version := range []string{"v1alpha1", "v1beta1"} {
		manifest += fmt.Sprintf(`
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: %[1]s.wardle.example.com}
spec:
  group: wardle.example.com
  version: %[1]s
  groupPriorityMinimum: 1000
  versionPriority: %[2]d
  service: {name: api, namespace: %[3]s, port: %[4]d}
  caBundle: %[5]s
`, version, 15-priority, sampleNamespace, port, base64.StdEncoding.EncodeToString(s.caBundle))
	}
	return manifest
}

// straight returns a caller of the extension API server itself.
func (s *sample) straight(tb testing.TB, config *rest.Config) *framework.Caller {
	tb.Helper()
	config = rest.CopyConfig(config)
	config.Host, config.CAData, config.CAFile = s.url, s.caBundle, ""
	return s.asCluster().As(tb, config)
}

// asCluster is the cluster with the audit log of the extension API server.
func (s *sample) asCluster() *framework.Cluster {
	c := *s.cluster
	c.AuditLog = s.auditLog
	return &c
}

// wantUser wants the extension API server to have seen a user with these groups.
func (s *sample) wantUser(t *testing.T, name string, groups ...string) {
	t.Helper()
	framework.Eventually(t, "audit event of "+name, func() error {
		events := s.asCluster().AuditEvents(t, func(event *auditv1.Event) bool { return event.User.Username == name })
		if len(events) == 0 {
			return fmt.Errorf("%s has none of %s", s.auditLog, name)
		}
		if diff := cmp.Diff(groups, events[0].User.Groups); diff != "" {
			t.Errorf("groups of %s (-want +got):\n%s", name, diff)
		}
		return nil
	})
}

// tokenKubeconfig is a kubeconfig for the cluster of config by a token.
func tokenKubeconfig(config *rest.Config, token string) clientcmdapi.Config {
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["c"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	kubeconfig.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token}
	kubeconfig.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	kubeconfig.CurrentContext = "x"
	return *kubeconfig
}
