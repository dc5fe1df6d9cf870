package explain

import (
	"encoding/base64"
	"testing"

	"google.golang.org/grpc/codes"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/trigate/trigate/services/authz/internal/convert"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

func wantInvalid(t *testing.T, err error, field string) {
	t.Helper()
	if e, ok := rpcerr.As(err); !ok || e.Code() != codes.InvalidArgument || e.Field != field {
		t.Errorf("err = %v, want an invalid %s", err, field)
	}
}

func TestPageSizes(t *testing.T) {
	many := make([]rbacv1.Subject, maxPageSize+1)
	for i := range many {
		many[i] = userSubject(string(rune('a' + i)))
	}
	e := newExplainer(t, Config{RBAC: newMemory(clusterRole("r", rule(words("get"), words(""), words("pods"))), clusterRoleBinding("b", "r", many...))})
	action := resource(nil, "get", "pods:p", "")
	for size, want := range map[int]int{0: defaultPageSize, 1: 1, maxPageSize: maxPageSize} {
		page, err := e.WhoCan(t.Context(), Question{Action: action, PageSize: size})
		if err != nil || len(page.Grants) != want || page.NextPageToken == "" {
			t.Errorf("size %d: WhoCan() = %d grants, next %q, %v, want %d and more", size, len(page.Grants), page.NextPageToken, err, want)
		}
	}
	for _, size := range []int{-1, maxPageSize + 1} {
		_, err := e.WhoCan(t.Context(), Question{Action: action, PageSize: size})
		wantInvalid(t, err, "page_size")
	}
}

// TestPageTokens wants a token back that is as it was given, for the question that
// it was given for.
func TestPageTokens(t *testing.T) {
	action := resource(person("jane"), "get", "pods.g/log:p", "ns")
	for _, p := range []place{
		{binding: convert.ObjectName{Kind: kindClusterRoleBinding, Name: "b"}},
		{binding: convert.ObjectName{Kind: kindRoleBinding, Namespace: "ns", Name: "b\xff\x00\""}, subject: 7},
	} {
		token := p.token(action)
		if got, err := readPageToken(token, action); err != nil || got != p {
			t.Errorf("readPageToken() = %v, %v, want %v", got, err, p)
		}
		// The user is left out of the question.
		if got, err := readPageToken(token, resource(nil, "get", "pods.g/log:p", "ns")); err != nil || got != p {
			t.Errorf("readPageToken() for another user = %v, %v, want %v", got, err, p)
		}
		for _, other := range []authorizer.AttributesRecord{
			resource(nil, "list", "pods.g/log:p", "ns"), resource(nil, "get", "services.g/log:p", "ns"), resource(nil, "get", "pods/log:p", "ns"),
			resource(nil, "get", "pods.g:p", "ns"), resource(nil, "get", "pods.g/log", "ns"), resource(nil, "get", "pods.g/log:p", ""),
			path(nil, "get", "/pods"),
		} {
			_, err := readPageToken(token, other)
			wantInvalid(t, err, "page_token")
		}
	}
	for _, text := range []string{
		"?", "e30=", "bm90IEpTT04", encoded(`{}`), encoded(`[]`), encoded(`{"kind":"Role","subject":0}`),
		encoded(`{"kind":"RoleBinding","subject":-1}`), encoded(`{"kind":"RoleBinding","subject":1}`), encoded(`{"kind":"RoleBinding"} {}`),
	} {
		_, err := readPageToken(text, action)
		wantInvalid(t, err, "page_token")
	}
}

func encoded(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

// TestBindingsComeAndGo turns a page while bindings before and after it change.
func TestBindingsComeAndGo(t *testing.T) {
	binding := func(name string) runtime.Object { return clusterRoleBinding(name, "r", userSubject(name)) }
	role := clusterRole("r", rule(words("get"), words(""), words("pods")))
	action := resource(nil, "get", "pods:p", "")
	before := newExplainer(t, Config{RBAC: newMemory(role, binding("b"), binding("d"), binding("f"), binding("h"))})
	first, err := before.WhoCan(t.Context(), Question{Action: action, PageSize: 2})
	if err != nil {
		t.Fatal(err)
	}
	// The last one of the first page is gone, and others have come on both sides.
	after := newExplainer(t, Config{RBAC: newMemory(role, binding("a"), binding("b"), binding("e"), binding("f"), binding("h"))})
	second, err := after.WhoCan(t.Context(), Question{Action: action, PageToken: first.NextPageToken})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, g := range append(first.Grants, second.Grants...) {
		names = append(names, g.Subject.Name)
	}
	if got := len(names); got != 5 || names[1] != "d" || names[2] != "e" || names[4] != "h" {
		t.Errorf("subjects = %q, want b, d, then e, f, h", names)
	}
}

// FuzzPageToken reads what anybody may send.
func FuzzPageToken(f *testing.F) {
	action := path(nil, "get", "/")
	f.Add("")
	f.Add("?")
	f.Add(encoded(`{"kind":"RoleBinding","name":"YQ","subject":1}`))
	f.Add(place{binding: convert.ObjectName{Kind: kindRoleBinding, Name: "b"}, subject: 1}.token(action))
	f.Fuzz(func(t *testing.T, token string) {
		p, err := readPageToken(token, action)
		if err != nil {
			wantInvalid(t, err, "page_token")
			return
		}
		if token != "" && p.subject < 0 {
			t.Errorf("readPageToken() = %v", p)
		}
	})
}
