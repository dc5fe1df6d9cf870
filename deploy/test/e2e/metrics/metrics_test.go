// Package metrics tests what the processes of a running Trigate expose to Prometheus,
// and that the alert rules and the dashboard ask for nothing else.
package metrics

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"sigs.k8s.io/yaml"

	dto "github.com/prometheus/client_model/go"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

// observability is the folder of the rules and the dashboard.
const observability = "../../../observability"

var services = []string{"authn", "authz", "admission"}

// families are the metrics of one process by name.
type families map[string]*dto.MetricFamily

// scrape starts Trigate, has every gate do something, and returns what each process
// exposes, and a token that was used.
func scrape(t *testing.T) (map[string]families, string) {
	t.Helper()
	addresses := map[string]string{}
	var args []string
	for _, service := range services {
		addresses[service] = fmt.Sprintf("127.0.0.1:%d", framework.FreePort(t))
		args = append(args, "--"+service+"-arg=--metrics-listen-address="+addresses[service])
	}
	c := framework.StartTrigate(t, framework.TrigateOptions{Args: args})
	ns := c.Namespace(t)
	token := c.ServiceAccountToken(t, ns, "default")
	// The token is authn's to judge, the question authz's, and the webhook admission's.
	c.As(t, c.Token(t, token)).Send(t, http.MethodGet, "/api/v1/namespaces/"+ns+"/secrets", "").Want(t, http.StatusForbidden)
	c.RegisterMutating(t, "trigate-test-metrics")

	scraped := map[string]families{"gateway": parse(t, string(c.Admin(t).Send(t, http.MethodGet, "/metrics", "").Want(t, http.StatusOK).Body))}
	for service, address := range addresses {
		for _, path := range []string{"/livez", "/readyz"} {
			get(t, "http://"+address+path)
		}
		scraped[service] = parse(t, get(t, "http://"+address+"/metrics"))
	}
	return scraped, token
}

func get(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %d, %v: %s", url, response.StatusCode, err, body)
	}
	return string(body)
}

func parse(t *testing.T, text string) families {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	parsed, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("reading metrics: %v", err)
	}
	return parsed
}

func TestEveryProcessHasItsMetrics(t *testing.T) {
	scraped, token := scrape(t)
	exposed := map[string]bool{"up": true} // Prometheus' own
	for process, metrics := range scraped {
		for _, name := range []string{
			"kubernetes_build_info", "process_resident_memory_bytes", "go_goroutines", "rest_client_requests_total",
		} {
			if metrics[name] == nil {
				t.Errorf("%s has no metric %s", process, name)
			}
		}
		for name, family := range metrics {
			exposed[name] = true
			if family.GetType() == dto.MetricType_HISTOGRAM {
				exposed[name+"_bucket"], exposed[name+"_count"], exposed[name+"_sum"] = true, true, true
			}
			wantBounded(t, process, family, token)
		}
	}
	for _, service := range services {
		if scraped[service]["trigate_grpc_server_handled_total"] == nil {
			t.Errorf("%s has no metric trigate_grpc_server_handled_total", service)
		}
	}
	asked := append(ruleExpressions(t), dashboardExpressions(t)...)
	if len(asked) == 0 {
		t.Fatal("there is no expression in the rules and the dashboard")
	}
	for _, expression := range asked {
		for _, name := range metricsIn(expression) {
			if !exposed[name] {
				t.Errorf("no process exposes %s, which is in %q", name, expression)
			}
		}
	}
}

// wantBounded wants no label of Trigate's own metrics to be one of those that users
// choose the values of, and the token in none at all.
func wantBounded(t *testing.T, process string, family *dto.MetricFamily, token string) {
	t.Helper()
	const maxSeries = 500
	if n := len(family.GetMetric()); strings.HasPrefix(family.GetName(), "trigate_") && n > maxSeries {
		t.Errorf("%s of %s has %d series, want at most %d", family.GetName(), process, n, maxSeries)
	}
	known := []string{"method", "code", "service", "file", "result", "decision", "resource", "phase", "outcome", "reason"}
	for _, metric := range family.GetMetric() {
		for _, label := range metric.GetLabel() {
			if strings.Contains(token, label.GetValue()) && len(label.GetValue()) > 20 || strings.Contains(label.GetValue(), token) {
				t.Errorf("%s of %s has a token in the label %s", family.GetName(), process, label.GetName())
			}
			if strings.HasPrefix(family.GetName(), "trigate_") && !slices.Contains(known, label.GetName()) {
				t.Errorf("%s of %s has the label %s: is it bounded?", family.GetName(), process, label.GetName())
			}
		}
	}
}

func ruleExpressions(t *testing.T) []string {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []struct{ Expr string }
		}
	}
	if err := yaml.Unmarshal(read(t, "alerts.yaml"), &file); err != nil {
		t.Fatalf("alerts.yaml: %v", err)
	}
	var expressions []string
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			expressions = append(expressions, rule.Expr)
		}
	}
	return expressions
}

func dashboardExpressions(t *testing.T) []string {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(read(t, "dashboard.json"), &dashboard); err != nil {
		t.Fatalf("dashboard.json: %v", err)
	}
	var expressions []string
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			expressions = append(expressions, target.Expr)
		}
	}
	return expressions
}

var (
	notNames = regexp.MustCompile(`"[^"]*"|\{[^}]*\}|\[[^]]*\]|\b(by|on|without)\s*\([^)]*\)`)
	names    = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*\b\s*\(?`)
)

// metricsIn returns the names of the metrics in an expression: what is neither a
// function nor an operator. promtool has seen to it that it is one.
func metricsIn(expression string) []string {
	var found []string
	for _, name := range names.FindAllString(notNames.ReplaceAllString(expression, " "), -1) {
		if name = strings.TrimSpace(name); !strings.HasSuffix(name, "(") && !slices.Contains([]string{"and", "or", "unless"}, name) {
			found = append(found, name)
		}
	}
	return found
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(observability, name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}
