// Package alerts has Prometheus' own tool read what deploy/observability has for it. The
// tool, promtool, is in the Debian package prometheus; make test-alerts runs this.
package alerts

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// observability is the folder of the rules and the dashboard.
const observability = "../../observability"

// TestPrometheusTakesTheRules has Prometheus' own tool read the rules, and the
// dashboard's expressions as rules, with values for Grafana's variables.
func TestPrometheusTakesTheRules(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatal("promtool is not installed: it is in the Debian package prometheus")
	}
	check := func(file string) {
		t.Helper()
		if output, err := exec.CommandContext(t.Context(), promtool, "check", "rules", file).CombinedOutput(); err != nil {
			t.Errorf("promtool check rules %s: %v\n%s", file, err, output)
		}
	}
	check(filepath.Join(observability, "alerts.yaml"))
	var rules []map[string]string
	for i, expression := range dashboardExpressions(t) {
		rules = append(rules, map[string]string{
			"record": fmt.Sprintf("panel:%d", i),
			"expr":   strings.NewReplacer("$__rate_interval", "5m", "$job", "x", "$instance", "x").Replace(expression),
		})
	}
	content, err := yaml.Marshal(map[string]any{"groups": []map[string]any{{"name": "dashboard", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "dashboard.yaml")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	check(file)
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

func read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(observability, name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}
