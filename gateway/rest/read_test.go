package rest

import (
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"k8s.io/apiserver/pkg/authentication/user"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	authzclient "github.com/trigate/trigate/services/authz/client"
)

// read makes a message of a body, as for a caller with groups.
func read(t *testing.T, body string, m proto.Message) error {
	t.Helper()
	h := &Handler{cfg: Config{Known: func() authzclient.Revision { return authzclient.Revision{} }}}
	given, err := jsonCodec.unmarshal([]byte(body), m)
	if err == nil {
		err = h.complete(&user.DefaultInfo{Name: "admin", Groups: []string{"one", "two"}}, m, given)
	}
	return err
}

// TestBatchKeepsItsUser wants the questions of a batch that names a user to be about that
// user, and not about the caller.
func TestBatchKeepsItsUser(t *testing.T) {
	m := &authzv1.BatchAuthorizeRequest{}
	if err := read(t, `{"user":{"name":"bob"},"questions":[{"attributes":{"verb":"get","resource":"pods"}}]}`, m); err != nil {
		t.Fatal(err)
	}
	if got := m.GetQuestions()[0].GetAttributes().GetUser().GetName(); got != "" && got != "bob" {
		t.Errorf("the question is about %s, want bob", got)
	}
}

// TestActionsAreFresh wants actions in columns to be about the caller, by a policy that has
// seen what the gateway knows of.
func TestActionsAreFresh(t *testing.T) {
	m := &authzv1.BatchAuthorizeRequest{}
	h := &Handler{cfg: Config{Known: func() authzclient.Revision { return authzclient.Revision{Roles: 7} }}}
	given, err := jsonCodec.unmarshal([]byte(`{"actions":{"verbs":["get"],"names":["a","b"],"atLeastAsFreshAs":{"roleBindings":"3"}}}`), m)
	if err == nil {
		err = h.complete(&user.DefaultInfo{Name: "admin"}, m, given)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := m.GetActions().GetAtLeastAsFreshAs(); m.GetUser().GetName() != "admin" || got.GetRoles() != 7 || got.GetRoleBindings() != 3 {
		t.Errorf("complete() = %v, want the caller, and roles of 7 and bindings of 3 at least", m)
	}
}

// TestBatchIsBounded wants more questions than a gate takes to be refused before each of
// them gets a copy of the caller.
func TestBatchIsBounded(t *testing.T) {
	for _, questions := range []int{maxQuestions, maxElements} {
		m := &authzv1.BatchAuthorizeRequest{}
		body := `{"questions":[` + strings.Repeat(`{"attributes":{}},`, questions) + `{}]}`
		if err := read(t, body, m); err == nil {
			t.Errorf("%d questions, a body of %d bytes, became a message of %d", questions+1, len(body), proto.Size(m))
		}
	}
}

// TestNullObject wants an object that is JSON's null to be refused.
func TestNullObject(t *testing.T) {
	const body = `{"attributes":{"object":{"kind":{"kind":"Pod"},"encoding":"JSON","data":"bnVsbA=="},
		"resource":{"version":"v1","resource":"pods"},"namespace":"ns","equivalents":[{}]}}`
	defer func() {
		if value := recover(); value != nil {
			t.Errorf("panic: %v", value)
		}
	}()
	if err := read(t, body, &admissionv1.AdmitRequest{}); err == nil {
		t.Error("it was taken")
	}
}

// TestDeepBodies wants an error about a body that is nested too deeply to be short: the
// place in it grows with the depth, and the time to write it with its square.
func TestDeepBodies(t *testing.T) {
	for name, body := range map[string]string{
		"arrays":  strings.Repeat("[", 20_000),
		"objects": strings.Repeat(`{"a":`, 20_000),
	} {
		err := checkSyntax([]byte(body))
		if err == nil {
			t.Fatalf("%s: no error", name)
		}
		if n := len(err.Error()); n > 4_096 {
			t.Errorf("%s: the error has %d bytes", name, n)
		}
	}
}

// TestLongKey wants an error to be short, however long the key is that is not known.
func TestLongKey(t *testing.T) {
	err := read(t, `{"`+strings.Repeat("x", 100_000)+`":1}`, &authzv1.AuthorizeRequest{})
	if n := len(err.Error()); n > 4_096 {
		t.Errorf("the error has %d bytes", n)
	}
}

// TestRepeatedAliases wants a small YAML body to take memory in proportion to it.
func TestRepeatedAliases(t *testing.T) {
	body := []byte(`user: &a "` + strings.Repeat("x", 10_000) + "\"\nquestions: [" + strings.Repeat("*a,", 2_000) + "]\n")
	if took := allocated(func() { _, _ = yamlCodec.unmarshal(body, &authzv1.BatchAuthorizeRequest{}) }); took > 8<<20 {
		t.Errorf("%d bytes of YAML took %d bytes of memory", len(body), took)
	}
}

// TestOneYAMLDocument wants a second document to be refused, as a second JSON text is.
func TestOneYAMLDocument(t *testing.T) {
	if _, err := yamlCodec.unmarshal([]byte("user: {name: ann}\n---\nuser: {name: bob}\n"), &authzv1.BatchAuthorizeRequest{}); err == nil {
		t.Error("it was left aside")
	}
}

func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
