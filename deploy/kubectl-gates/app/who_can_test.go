package app

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
)

// answerWhoCan has the gate know the subjects, in pages as they are asked for.
func answerWhoCan(t *testing.T, s *server, grants []*authzv1.Grant, last *authzv1.WhoCanResponse) {
	t.Helper()
	answer(t, s, pathWhoCan, func(q *authzv1.WhoCanRequest) (proto.Message, error) {
		start := 0
		if q.GetPageToken() != "" {
			var err error
			if start, err = strconv.Atoi(q.GetPageToken()); err != nil {
				return nil, apierrors.NewBadRequest(err.Error())
			}
		}
		page := &authzv1.WhoCanResponse{NotListedBy: last.GetNotListedBy(), Errors: last.GetErrors(), PercentEncoded: last.GetPercentEncoded()}
		end := min(start+int(q.GetPageSize()), len(grants))
		page.Grants = grants[start:end]
		if end < len(grants) {
			page.NextPageToken = strconv.Itoa(end)
		}
		return page, nil
	})
}

// subjects are n users who are bound to cluster-admin, after a service account.
func subjects(n int) []*authzv1.Grant {
	grants := []*authzv1.Grant{grant()}
	for i := range n {
		grants = append(grants, &authzv1.Grant{
			Subject: &authzv1.Subject{Kind: "User", Name: fmt.Sprintf("user-%04d", i)},
			Binding: &authzv1.ObjectName{Kind: "ClusterRoleBinding", Name: "admins"},
			Role:    &authzv1.ObjectName{Kind: "ClusterRole", Name: "cluster-admin"},
		})
	}
	return grants
}

func TestWhoCan(t *testing.T) {
	s := newServer(t)
	answerWhoCan(t, s, append(subjects(2), subjects(1)[1]), &authzv1.WhoCanResponse{NotListedBy: []string{"node", "hook"}, Errors: []string{"clusterrole \"gone\" not found"}})
	const notes = "Others may be allowed by what cannot list whom it allows: node, hook.\nA role that is bound cannot be read: clusterrole \"gone\" not found\n"
	want := `KIND             NAME        NAMESPACE   BINDING                      ROLE
ServiceAccount   ann         tour        RoleBinding/tour/ann-reads   Role/tour/reader
User             user-0000               ClusterRoleBinding/admins    ClusterRole/cluster-admin
User             user-0001               ClusterRoleBinding/admins    ClusterRole/cluster-admin
User             user-0000               ClusterRoleBinding/admins    ClusterRole/cluster-admin
`
	s.run(t, "", "who-can", "list", "pods").want(t, exitYes, want, notes)
	// Columns stay where the first page has them.
	s.run(t, "", "who-can", "list", "pods", "--chunk-size=2").want(t, exitYes, want, notes)
	_, rows, _ := strings.Cut(want, "\n")
	got := s.run(t, "", "who-can", "list", "pods", "--no-headers")
	if got.code != exitYes || strings.Join(strings.Fields(got.out), " ") != strings.Join(strings.Fields(rows), " ") {
		t.Errorf("--no-headers: exit code %d:\n%s\nwant:\n%s", got.code, got.out, rows)
	}
	s.run(t, "", "who-can", "list", "pods", "-o", "name", "--chunk-size=1").
		want(t, exitYes, "serviceaccount/tour/ann\nuser/user-0000\nuser/user-0001\n", notes)
}

func TestWhoCanNobody(t *testing.T) {
	s := newServer(t)
	answerWhoCan(t, s, nil, &authzv1.WhoCanResponse{PercentEncoded: true})
	s.run(t, "", "who-can", "fly", "/kites").want(t, exitYes, "",
		"Warning: verb \"fly\" is not a known verb of HTTP\nNobody but system:masters may fly /kites by RBAC.\nNames are percent-encoded, since one of them is not UTF-8.\n")
}

// TestWhoCanPages wants every page in one answer.
func TestWhoCanPages(t *testing.T) {
	s := newServer(t)
	grants := subjects(2500)
	answerWhoCan(t, s, grants, nil)
	got := s.run(t, "", "who-can", "list", "pods", "-o", "json")
	whole := &authzv1.WhoCanResponse{}
	if err := protojson.Unmarshal([]byte(got.out), whole); err != nil || !json.Valid([]byte(got.out)) {
		t.Fatalf("%v:\n%.300s", err, got.out)
	}
	if got.code != exitYes || len(whole.GetGrants()) != len(grants) || whole.GetNextPageToken() != "" {
		t.Errorf("exit code %d, %d grants, token %q, want 0, %d and none", got.code, len(whole.GetGrants()), whole.GetNextPageToken(), len(grants))
	}
	if got := s.run(t, "", "who-can", "list", "pods", "--no-headers"); strings.Count(got.out, "\n") != len(grants) {
		t.Errorf("%d lines, want %d", strings.Count(got.out, "\n"), len(grants))
	}
}
