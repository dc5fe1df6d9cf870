package app

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
)

// admitting is a gate that labels each object in mutating admission, and refuses those
// with a name of its.
type admitting struct {
	mutated, validated []*admissionv1.Attributes
}

// add has the server answer as the gate.
func (a *admitting) add(t *testing.T, s *server) {
	t.Helper()
	answer(t, s, pathAdmit, func(q *admissionv1.AdmitRequest) (proto.Message, error) {
		a.mutated = append(a.mutated, q.GetAttributes())
		response := &admissionv1.AdmitResponse{Outcome: &admissionv1.Outcome{
			Allowed: true, Warnings: []*admissionv1.Warning{{Text: "it is old"}},
			AuditAnnotations: []*admissionv1.AuditAnnotation{{Key: "example.com/seen", Value: "yes"}},
		}}
		switch q.GetAttributes().GetName() {
		case "refused":
			response.Outcome = &admissionv1.Outcome{Failure: &admissionv1.Failure{Message: "no\nway"}}
			return response, nil
		case "left-alone":
			return response, nil
		}
		if q.GetAttributes().GetObject() == nil {
			return response, nil
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(q.GetAttributes().GetObject().GetData()); err != nil {
			return nil, err
		}
		object.SetLabels(map[string]string{"admitted": "yes"})
		if data, ok := object.Object["data"].(map[string]any); ok {
			data["password"] = "dG9w"
		}
		return &plainAdmitResponse{AdmitResponse: response, object: object}, nil
	})
	answer(t, s, pathValidate, func(q *admissionv1.ValidateRequest) (proto.Message, error) {
		a.validated = append(a.validated, q.GetAttributes())
		if q.GetAttributes().GetName() != "invalid" {
			return &admissionv1.ValidateResponse{Outcome: &admissionv1.Outcome{Allowed: true}}, nil
		}
		return &admissionv1.ValidateResponse{Outcome: &admissionv1.Outcome{Failure: &admissionv1.Failure{Message: "m", Status: &admissionv1.Status{
			Status: "Failure", Message: `pods "invalid" is forbidden: by policy`, Reason: "Forbidden", Code: 403,
			Details: &admissionv1.StatusDetails{Name: "invalid", Kind: "pods", Causes: []*admissionv1.StatusCause{{Type: "FieldValueInvalid", Message: "is bad", Field: "spec.x"}, {Type: "Odd", Message: "it is"}}},
		}}}}, nil
	})
}

// plainAdmitResponse is an AdmitResponse as REST has it: the object as it is.
type plainAdmitResponse struct {
	*admissionv1.AdmitResponse
	object *unstructured.Unstructured
}

// MarshalJSON implements json.Marshaler.
func (r *plainAdmitResponse) MarshalJSON() ([]byte, error) {
	outcome, err := protojson.Marshal(r.GetOutcome())
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{"outcome": json.RawMessage(outcome), "object": r.object})
}

// pod is a manifest.
func pod(name string) string {
	return `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "` + name + `"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}` + "\n"
}

// temporary are what no two runs have in common in a diff.
var temporary = regexp.MustCompile(`(?m)^(diff .*|--- .*|\+\+\+ .*)$`)

func TestAdmit(t *testing.T) {
	const (
		warned = "  Warning: it is old\n"
		diff   = "DIFF\nDIFF\nDIFF\n@@ -1,6 +1,8 @@\n apiVersion: v1\n kind: Pod\n metadata:\n+  labels:\n+    admitted: \"yes\"\n   name: shell\n   namespace: tour\n spec:\n"
	)
	for name, tc := range map[string]struct {
		args []string
		in   string
		code int
		want string
	}{
		"changed": {in: pod("shell"), want: "pod/shell in namespace tour (create): allowed, changed:\n" + warned + diff},
		"left alone, in another namespace": {
			in: pod("left-alone"), args: []string{"-n", "other"}, want: "pod/left-alone in namespace other (create): allowed, unchanged\n" + warned,
		},
		"refused in mutating admission": {
			in: pod("refused"), code: exitNo, want: "pod/refused in namespace tour (create): denied by mutating admission (500 InternalError)\n  no\n  way\n",
		},
		"refused in validating admission": {
			in: pod("invalid"), code: exitNo, want: "pod/invalid in namespace tour (create): denied by validating admission (403 Forbidden)\n" +
				"  pods \"invalid\" is forbidden: by policy\n  - spec.x: is bad\n  - Odd: it is\n" + warned,
		},
		"several": {
			in: pod("left-alone") + "---\n" + pod("refused") + "---\n" + pod("left-alone"), code: exitNo,
			want: "pod/left-alone in namespace tour (create): allowed, unchanged\n" + warned +
				"pod/refused in namespace tour (create): denied by mutating admission (500 InternalError)\n  no\n  way\n" +
				"pod/left-alone in namespace tour (create): allowed, unchanged\n" + warned,
		},
		"a name that the server makes": {
			in:   `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "x-", "labels": {"admitted": "yes"}}}`,
			want: "namespace/x- (create): allowed, changed:\n" + warned,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			new(admitting).add(t, s)
			got := s.run(t, tc.in, append([]string{"admit", "-f", "-"}, tc.args...)...)
			got.out = temporary.ReplaceAllString(got.out, "DIFF")
			got.want(t, tc.code, tc.want, "")
		})
	}
}

// TestAdmitAsks looks at what reaches the gate.
func TestAdmitAsks(t *testing.T) {
	s, gate := newServer(t), &admitting{}
	gate.add(t, s)
	live := func(kind, name string) map[string]any {
		return map[string]any{
			"apiVersion": "v1", "kind": kind,
			"metadata": map[string]any{"name": name, "namespace": "tour", "uid": "7", "resourceVersion": "8", "creationTimestamp": "2020-01-01T00:00:00Z"},
			"spec":     map[string]any{"nodeName": "n"}, "status": map[string]any{"phase": "Running"},
		}
	}
	s.objects["/api/v1/namespaces/tour/pods/there"] = live("Pod", "there")
	s.objects["/api/v1/namespaces/tour"] = live("Namespace", "tour")
	namespace := `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tour"}}`
	options := func(kind, more string) *admissionv1.Object {
		return &admissionv1.Object{
			Kind: &admissionv1.GroupVersionKind{Group: "meta.k8s.io", Version: "v1", Kind: kind}, Encoding: admissionv1.Encoding_ENCODING_JSON,
			Data: []byte(`{"apiVersion":"meta.k8s.io/v1","dryRun":["All"],` + more + `"kind":"` + kind + `"}` + "\n"),
		}
	}
	manager := `"fieldManager":"kubectl-gates",`
	for name, tc := range map[string]struct {
		in        string
		args      []string
		want      *admissionv1.Attributes
		uid, kept string
	}{
		"what is not there": {
			in: pod("new"),
			want: &admissionv1.Attributes{
				Operation: admissionv1.Operation_OPERATION_CREATE, Namespace: "tour", Name: "new", Options: options("CreateOptions", manager),
			},
		},
		"what is there": {
			in: pod("there"),
			want: &admissionv1.Attributes{
				Operation: admissionv1.Operation_OPERATION_UPDATE, Namespace: "tour", Name: "there", Options: options("UpdateOptions", manager),
			},
			uid: "7", kept: "Running",
		},
		"what is there, as if it were not": {
			in: pod("there"), args: []string{"--operation=create"},
			want: &admissionv1.Attributes{
				Operation: admissionv1.Operation_OPERATION_CREATE, Namespace: "tour", Name: "there", Options: options("CreateOptions", manager),
			},
		},
		"a namespace, which is in itself": {
			in: namespace, args: []string{"--operation=delete"},
			want: &admissionv1.Attributes{
				Operation: admissionv1.Operation_OPERATION_DELETE, Namespace: "tour", Name: "tour", Options: options("DeleteOptions", ""),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			gate.mutated, gate.validated = nil, nil
			if got := s.run(t, tc.in, append([]string{"admit", "-f", "-", "--as", "ann"}, tc.args...)...); got.code != exitYes || len(gate.mutated) != 1 || len(gate.validated) != 1 {
				t.Fatalf("exit code %d, %d and %d calls\nstdout:\n%s\nstderr:\n%s", got.code, len(gate.mutated), len(gate.validated), got.out, got.err)
			}
			for phase, attributes := range map[string]*admissionv1.Attributes{"mutating": gate.mutated[0], "validating": gate.validated[0]} {
				if diff := cmp.Diff(tc.want, attributes, protocmp.Transform(), protocmp.IgnoreFields(&admissionv1.Attributes{}, "kind", "resource", "user", "dry_run", "object", "old_object")); diff != "" {
					t.Errorf("%s (-want +got):\n%s", phase, diff)
				}
				user := attributes.GetUser()
				if !attributes.GetDryRun() || user.GetName() != "ann" || len(user.GetGroups()) != 1 {
					t.Errorf("%s: dry run %t by %v, want a dry run by ann", phase, attributes.GetDryRun(), user)
				}
				if old := attributes.GetOldObject() != nil; old == (tc.want.GetOperation() == admissionv1.Operation_OPERATION_CREATE) {
					t.Errorf("%s: %v with an old object: %t", phase, tc.want.GetOperation(), old)
				}
				if tc.want.GetOperation() == admissionv1.Operation_OPERATION_DELETE {
					if attributes.GetObject() != nil {
						t.Errorf("%s: a deletion has an object: %v", phase, attributes.GetObject())
					}
					continue
				}
				object := &unstructured.Unstructured{}
				if err := object.UnmarshalJSON(attributes.GetObject().GetData()); err != nil {
					t.Fatal(err)
				}
				status, _, err := unstructured.NestedString(object.Object, "status", "phase")
				if err != nil || string(object.GetUID()) != tc.uid || status != tc.kept {
					t.Errorf("%s: uid %q, phase %q, %v, want %q and %q", phase, object.GetUID(), status, err, tc.uid, tc.kept)
				}
				if labelled := object.GetLabels()["admitted"] == "yes"; labelled != (phase == "validating") {
					t.Errorf("%s: labelled by the gate: %t", phase, labelled)
				}
			}
		})
	}
}

// TestAdmitSecret wants no value of a Secret in a diff.
func TestAdmitSecret(t *testing.T) {
	s := newServer(t)
	new(admitting).add(t, s)
	got := s.run(t, `{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"password": "c2VjcmV0", "same": "dG9v"}}`, "admit", "-f", "-")
	if got.code != exitYes || !strings.Contains(got.out, "+  password: '*** (after)'") {
		t.Errorf("exit code %d, want a masked diff\n%s\n%s", got.code, got.out, got.err)
	}
	for _, value := range []string{"c2VjcmV0", "dG9v", "dG9w"} {
		if strings.Contains(got.out+got.err, value) {
			t.Errorf("%s is in the diff:\n%s", value, got.out)
		}
	}
}

// TestAdmitExternalDiff has a user's own diff program.
func TestAdmitExternalDiff(t *testing.T) {
	s := newServer(t)
	new(admitting).add(t, s)
	t.Setenv("KUBECTL_EXTERNAL_DIFF", "echo own")
	if got := s.run(t, pod("shell"), "admit", "-f", "-"); got.code != exitYes || !strings.HasSuffix(got.out, " own\n") {
		t.Errorf("exit code %d, want the output of echo\n%s\n%s", got.code, got.out, got.err)
	}
	t.Setenv("KUBECTL_EXTERNAL_DIFF", "no-such-program")
	if got := s.run(t, pod("shell"), "admit", "-f", "-"); got.code != exitError || !strings.Contains(got.err, "no-such-program") {
		t.Errorf("exit code %d, want 2 and the program's name\n%s\n%s", got.code, got.out, got.err)
	}
}

func TestAdmitReport(t *testing.T) {
	s := newServer(t)
	new(admitting).add(t, s)
	got := s.run(t, pod("left-alone")+"---\n"+pod("invalid"), "admit", "-f", "-", "-o", "json")
	var report any
	if err := json.Unmarshal([]byte(got.out), &report); err != nil || got.code != exitNo || got.err != "" {
		t.Fatalf("exit code %d, %v\n%s\n%s", got.code, err, got.out, got.err)
	}
	annotations := map[string]any{"example.com/seen": "yes"}
	want := map[string]any{"apiVersion": "gates.trigate/v1", "kind": "AdmissionReport", "items": []any{
		map[string]any{
			"operation": "create", "apiVersion": "v1", "kind": "Pod", "namespace": "tour", "name": "left-alone", "allowed": true,
			"warnings": []any{"it is old"}, "auditAnnotations": annotations,
		},
		map[string]any{
			"operation": "create", "apiVersion": "v1", "kind": "Pod", "namespace": "tour", "name": "invalid", "allowed": false, "deniedBy": "validating",
			"warnings": []any{"it is old"}, "auditAnnotations": annotations,
			"object": map[string]any{
				"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "invalid", "namespace": "tour", "labels": map[string]any{"admitted": "yes"}},
				"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}},
			},
			"status": map[string]any{
				"metadata": map[string]any{}, "status": "Failure", "message": `pods "invalid" is forbidden: by policy`, "reason": "Forbidden", "code": float64(403),
				"details": map[string]any{"name": "invalid", "kind": "pods", "causes": []any{
					map[string]any{"reason": "FieldValueInvalid", "message": "is bad", "field": "spec.x"}, map[string]any{"reason": "Odd", "message": "it is"},
				}},
			},
		},
	}}
	if diff := cmp.Diff(want, report); diff != "" {
		t.Errorf("-o json (-want +got):\n%s", diff)
	}
}

// TestAdmitFiles has folders and what is wrong with them: one object that nothing can
// be told of leaves the others alone.
func TestAdmitFiles(t *testing.T) {
	s := newServer(t)
	new(admitting).add(t, s)
	dir := t.TempDir()
	for file, content := range map[string]string{
		"a.json": pod("left-alone"), "deep/b.yaml": "apiVersion: v1\nkind: Pod\nmetadata:\n  name: refused\n", "deep/c.yaml": "apiVersion: example.com/v1\nkind: Kite\nmetadata:\n  name: red\n",
	} {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	first := "pod/left-alone in namespace tour (create): allowed, unchanged\n  Warning: it is old\n"
	s.run(t, "", "admit", "-f", dir).want(t, exitYes, first, "")
	got := s.run(t, "", "admit", "-f", dir, "-R")
	if got.code != exitError || !strings.HasPrefix(got.out, first+"pod/refused in namespace tour (create): denied") || !strings.Contains(got.err, `no matches for kind "Kite"`) {
		t.Errorf("exit code %d\nstdout:\n%s\nstderr:\n%s\nwant 2, both Pods, and an error for the Kite", got.code, got.out, got.err)
	}
	s.run(t, pod("gone"), "admit", "-f", "-", "--operation=delete").wantError(t, "not found")
	s.run(t, pod("x"), "admit", "-f", "-", "-n", "other", "--operation", "update").wantError(t, "not found")
	s.run(t, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "x-"}}`, "admit", "-f", "-", "--operation", "update").wantError(t, "it has to have a name")
	s.run(t, "", "admit", "-f", filepath.Join(dir, "nothing.yaml")).wantError(t, "nothing.yaml")
}
