package framework

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	corev1 "k8s.io/api/core/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/trigate/trigate/deploy/pki"
)

// The names of the control planes that tests compare.
const (
	Trigate = "trigate"
	Stock   = "stock"
)

// Cluster is a running control plane.
type Cluster struct {
	// Name is Trigate or Stock.
	Name string
	// Dir holds all its files.
	Dir string
	// Kubeconfig is the administrator's, a member of system:masters.
	Kubeconfig string
	// AuditLog is the file with its audit events, one JSON object a line.
	AuditLog string
	// PKI are its keys and certificates.
	PKI *pki.Layout

	stop func() error
}

// Stop ends the control plane.
func (c *Cluster) Stop() error { return c.stop() }

// Config returns the administrator's client configuration, without a rate limit.
func (c *Cluster) Config(tb testing.TB) *rest.Config {
	tb.Helper()
	config, err := c.config()
	if err != nil {
		tb.Fatal(err)
	}
	return config
}

func (c *Cluster) config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of %s: %w", c.Name, err)
	}
	config.QPS = -1
	config.WarningHandler = rest.NoWarnings{}
	return config, nil
}

// Client returns the administrator's client.
func (c *Cluster) Client(tb testing.TB) kubernetes.Interface {
	tb.Helper()
	return ClientFor(tb, c.Config(tb))
}

// Dynamic returns the administrator's client for any type.
func (c *Cluster) Dynamic(tb testing.TB) dynamic.Interface {
	tb.Helper()
	client, err := dynamic.NewForConfig(c.Config(tb))
	if err != nil {
		tb.Fatal(err)
	}
	return client
}

// ClientFor returns a client for config.
func ClientFor(tb testing.TB, config *rest.Config) kubernetes.Interface {
	tb.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		tb.Fatal(err)
	}
	return client
}

// HTTP returns a plain HTTP client with the credentials of config, for requests
// that client-go would not send or whose answers it would hide.
func HTTP(tb testing.TB, config *rest.Config) *http.Client {
	tb.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		tb.Fatal(err)
	}
	return client
}

// Namespace makes a namespace for the test and deletes it in the end. It has what
// controllers put into every namespace, so that they do not write there any more.
func (c *Cluster) Namespace(tb testing.TB) string {
	tb.Helper()
	return c.LabelledNamespace(tb, nil)
}

// LabelledNamespace is Namespace with labels, which are there from the start.
func (c *Cluster) LabelledNamespace(tb testing.TB, labels map[string]string) string {
	tb.Helper()
	client := c.Client(tb)
	created, err := client.CoreV1().Namespaces().Create(context.Background(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-", Labels: labels}}, metav1.CreateOptions{})
	if err != nil {
		tb.Fatalf("making a namespace on %s: %v", c.Name, err)
	}
	tb.Cleanup(func() {
		err := client.CoreV1().Namespaces().Delete(context.Background(), created.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			tb.Errorf("deleting namespace %s of %s: %v", created.Name, c.Name, err)
		}
	})
	Eventually(tb, "default service account and CA bundle", func() error {
		_, accountErr := client.CoreV1().ServiceAccounts(created.Name).Get(context.Background(), "default", metav1.GetOptions{})
		_, bundleErr := client.CoreV1().ConfigMaps(created.Name).Get(context.Background(), "kube-root-ca.crt", metav1.GetOptions{})
		return errors.Join(accountErr, bundleErr)
	})
	return created.Name
}

// AuditEvents returns the audit events so far for which keep returns true.
func (c *Cluster) AuditEvents(tb testing.TB, keep func(*auditv1.Event) bool) []auditv1.Event {
	tb.Helper()
	file, err := os.Open(c.AuditLog)
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	var events []auditv1.Event
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<20) // events hold whole objects
	for lines.Scan() {
		var event auditv1.Event
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			continue // the line that is being written
		}
		if keep(&event) {
			events = append(events, event)
		}
	}
	if err := lines.Err(); err != nil {
		tb.Fatalf("reading %s: %v", c.AuditLog, err)
	}
	return events
}

// shared are the control planes that the tests of one package use together.
var shared struct {
	mu       sync.Mutex
	clusters map[string]*Cluster
	dir      string
}

// Shared returns the package's control plane of this name, started when it is first
// asked for. Tests that kill or configure processes start their own.
func Shared(tb testing.TB, name string) *Cluster {
	tb.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if c, ok := shared.clusters[name]; ok {
		return c
	}
	if shared.dir == "" {
		dir, err := os.MkdirTemp("", "trigate-test-")
		if err != nil {
			tb.Fatal(err)
		}
		shared.dir, shared.clusters = dir, map[string]*Cluster{}
	}
	var c *Cluster
	var err error
	dir := filepath.Join(shared.dir, name)
	switch name {
	case Trigate:
		c, err = startTrigate(dir, TrigateOptions{})
	case Stock:
		c, err = startStock(dir, StockOptions{})
	default:
		err = fmt.Errorf("no control plane is called %q", name)
	}
	if err != nil {
		tb.Fatalf("starting %s: %v", name, err)
	}
	shared.clusters[name] = c
	return c
}

// Both runs test against stock kube-apiserver and against Trigate, each as a
// subtest. What test expects thus has to hold on both.
func Both(t *testing.T, test func(t *testing.T, c *Cluster)) {
	for _, name := range []string{Stock, Trigate} {
		t.Run(name, func(t *testing.T) { test(t, Shared(t, name)) })
	}
}

func stopShared() error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	var errs []error
	for _, c := range shared.clusters {
		errs = append(errs, c.Stop())
	}
	if shared.dir != "" && os.Getenv("TRIGATE_KEEP") == "" {
		errs = append(errs, os.RemoveAll(shared.dir))
	}
	shared.clusters, shared.dir = nil, ""
	return errors.Join(errs...)
}

// auditLogMaxSize keeps the audit log one file. Tests ask it for events from an offset
// on, and the events of large objects are soon more than the default of 100 MB.
const auditLogMaxSize = "--audit-log-maxsize=4096"

// writeAuditPolicy makes a policy that logs everything with its objects.
func writeAuditPolicy(dir string) (string, error) {
	path := filepath.Join(dir, "audit-policy.yaml")
	policy := strings.Join([]string{
		"apiVersion: audit.k8s.io/v1", "kind: Policy",
		"omitStages: [RequestReceived]",
		"rules:", "- level: RequestResponse",
	}, "\n")
	return path, os.WriteFile(path, []byte(policy), 0o644)
}
