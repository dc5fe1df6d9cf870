package node

import (
	"crypto/tls"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

// renewal renews all certificates while clients write and read, and waits until every
// process serves with its new one. Nothing restarts and no request fails.
func (c *trigate) renewal(t *testing.T) {
	l := c.startLoad(t)
	restarts, before := c.host.restarts(t), c.ends(t)
	c.host.pki(t, "renew", "--all")
	// The kubelet looks at Secrets about once a minute.
	framework.EventuallyWithin(t, timeout, "new certificates everywhere", func() error {
		for pod, end := range c.ends(t) {
			if !end.After(before[pod]) {
				return fmt.Errorf("%s serves with one that ends at %s, as before", pod, end)
			}
		}
		return nil
	})
	l.proceeds(t)
	l.noFailures(t)
	l.nothingLost(t)
	if now := c.host.restarts(t); !slices.Equal(now, restarts) {
		t.Errorf("pods and their restarts = %v, want %v as before", now, restarts)
	}
}

// restarts are the pods with the number of their restarts.
func (h *host) restarts(t *testing.T) []string {
	t.Helper()
	list, err := h.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=trigate"})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, pod := range list.Items {
		if len(pod.Status.ContainerStatuses) == 1 {
			all = append(all, fmt.Sprintf("%s %d", pod.UID, pod.Status.ContainerStatuses[0].RestartCount))
		}
	}
	slices.Sort(all)
	return all
}

// ends tells of each pod that serves TLS when its certificate ends.
func (c *trigate) ends(t *testing.T) map[string]time.Time {
	t.Helper()
	list, err := c.host.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=trigate"})
	if err != nil {
		t.Fatal(err)
	}
	ports := map[string]string{"gateway": "6443", "authn": "7441", "authz": "7442", "admission": "7443", "etcd": "2379"}
	ends := map[string]time.Time{}
	for _, pod := range list.Items {
		port, serves := ports[pod.Labels["app.kubernetes.io/component"]]
		if !serves || pod.Status.PodIP == "" || pod.DeletionTimestamp != nil {
			continue
		}
		// Whom it is issued to is no matter here, and that it is shown is enough: who asks
		// has no certificate, so that the handshake may be refused after it.
		err := shown(t, pod.Status.PodIP+":"+port, func(end time.Time) { ends[pod.Name] = end })
		if _, ok := ends[pod.Name]; !ok {
			t.Fatalf("%s shows no certificate: %v", pod.Name, err)
		}
	}
	if len(ends) < len(ports) {
		t.Fatalf("only %d pods serve TLS:\n%s", len(ends), c.host.pods(t))
	}
	return ends
}

// shown calls see with the end of the certificate that a server shows.
func shown(t *testing.T, address string, see func(time.Time)) error {
	t.Helper()
	dialer := &tls.Dialer{Config: &tls.Config{
		InsecureSkipVerify: true,
		NextProtos:         []string{"h2"},
		VerifyConnection: func(state tls.ConnectionState) error {
			see(state.PeerCertificates[0].NotAfter)
			return nil
		},
	}}
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// residentBytes finds a process's resident memory among its metrics.
var residentBytes = regexp.MustCompile(`(?m)^process_resident_memory_bytes (\S+)$`)

// memory logs what each process takes, which is where the manifests' requests and the
// guide's sizes come from.
func (c *trigate) memory(t *testing.T) {
	for component, port := range map[string]string{"authn": "8080", "authz": "8080", "admission": "8080", "etcd": "2381"} {
		for _, pod := range c.host.podsOf(t, component) {
			metrics, err := c.host.client.CoreV1().RESTClient().Get().
				Namespace(namespace).Resource("pods").Name(pod + ":" + port).SubResource("proxy").Suffix("metrics").DoRaw(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			match := residentBytes.FindSubmatch(metrics)
			if match == nil {
				t.Fatalf("%s tells nothing of its memory", pod)
			}
			t.Logf("%s: %s bytes resident", pod, match[1])
		}
	}
	metrics := c.MustKubectl(t, "get", "--raw", "/metrics")
	if match := residentBytes.FindStringSubmatch(metrics); match != nil {
		t.Logf("a gateway: %s bytes resident", match[1])
	} else if !strings.Contains(metrics, "trigate_gateway_") {
		t.Error("the gateway's metrics are not there")
	}
}
