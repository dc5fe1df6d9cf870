package rest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"sigs.k8s.io/yaml"
)

// binding is a rule of a *_http.yaml.
type binding struct {
	Selector string `json:"selector"`
	Get      string `json:"get"`
	Post     string `json:"post"`
	Body     string `json:"body"`
}

// bindingsOf returns the file of a service's package that has its rules, and the rules
// by the method.
func bindingsOf(t *testing.T, service protoreflect.ServiceDescriptor) (string, map[string]binding) {
	t.Helper()
	folder := filepath.Join("..", "..", "proto", filepath.FromSlash(strings.ReplaceAll(string(service.ParentFile().Package()), ".", "/")))
	files, err := filepath.Glob(filepath.Join(folder, "*_http.yaml"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%s has the files of rules %v (%v), want one", folder, files, err)
	}
	content, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		HTTP struct {
			Rules []binding `json:"rules"`
		} `json:"http"`
	}
	if err := yaml.Unmarshal(content, &file); err != nil {
		t.Fatalf("%s: %v", files[0], err)
	}
	rules := map[string]binding{}
	for _, rule := range file.HTTP.Rules {
		rules[rule.Selector] = rule
	}
	return string(content), rules
}

// TestEveryMethodHasARule wants an HTTP rule of every method, or a comment that says why
// it has none. The rules have the paths that are described and authorized.
func TestEveryMethodHasARule(t *testing.T) {
	for _, service := range services() {
		content, rules := bindingsOf(t, service)
		for i := range service.Methods().Len() {
			method := service.Methods().Get(i)
			rule, ok := rules[string(method.FullName())]
			delete(rules, string(method.FullName()))
			comment := regexp.MustCompile(`(?m)^\s*# ` + regexp.QuoteMeta(string(method.FullName())) + `: \S+`)
			switch streamed := method.IsStreamingServer(); {
			case !ok && !comment.MatchString(content):
				t.Errorf("%s has neither a rule nor a comment", method.FullName())
			case ok && method.IsStreamingClient():
				t.Errorf("%s has a rule, and a client's stream cannot be asked by REST", method.FullName())
			case ok && rule.Get+rule.Post != pathOf(method):
				t.Errorf("%s is at %s, want %s", method.FullName(), rule.Get+rule.Post, pathOf(method))
			case ok && (rule.Post != "") != (rule.Body == "*"):
				t.Errorf("%s: who posts sends a body, and who gets none: %+v", method.FullName(), rule)
			case ok && streamed && rule.Get == "":
				t.Errorf("%s is a stream, which is read by get", method.FullName())
			}
		}
		for selector := range rules {
			t.Errorf("there is a rule for %s, but no such method", selector)
		}
	}
}
