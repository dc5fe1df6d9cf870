package app

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
)

// streams have the server answer the watch, each stream with its lines. The last one
// stays open.
func (s *server) streams(streams ...[]string) {
	handler := s.Config.Handler
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != pathWatchRevisions {
			handler.ServeHTTP(w, r)
			return
		}
		lines := streams[0]
		w.Header().Set("Content-Type", "application/json")
		for _, line := range lines {
			_, _ = fmt.Fprintln(w, line)
		}
		_ = http.NewResponseController(w).Flush()
		if len(streams) > 1 {
			streams = streams[1:]
			return
		}
		<-r.Context().Done()
	})
}

// revision is a line of the stream.
func revision(t *testing.T, roles uint64, following bool, changed ...string) string {
	t.Helper()
	message := &authzv1.WatchPolicyRevisionResponse{Revision: &authzv1.PolicyRevision{ClusterRoles: 1, ClusterRoleBindings: 2, Roles: roles, RoleBindings: 4}, Following: following}
	for _, namespace := range changed {
		message.Changes = append(message.Changes, &authzv1.PolicyChange{Namespace: namespace})
	}
	content, err := protojson.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	return `{"result": ` + string(content) + `}`
}

// until ends a context when a text has been written.
type until struct {
	out    strings.Builder
	text   string
	cancel context.CancelFunc
}

// Write implements io.Writer.
func (u *until) Write(p []byte) (int, error) {
	n, err := u.out.Write(p)
	if strings.Contains(u.out.String(), u.text) {
		u.cancel()
	}
	return n, err
}

// watch runs watch-revisions until it has printed a text.
func (s *server) watch(t *testing.T, text string, args ...string) ran {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, errOut := &until{text: text, cancel: cancel}, &strings.Builder{}
	command := NewCommand(genericiooptions.IOStreams{In: strings.NewReader(""), Out: out, ErrOut: errOut})
	command.SetArgs(append([]string{"watch-revisions", "--kubeconfig=" + s.kubeconfig}, args...))
	if err := command.ExecuteContext(ctx); err != nil || ctx.Err() != context.Canceled {
		t.Errorf("watch-revisions %v = %v, %v, want it to go on until %q", args, err, ctx.Err(), text)
	}
	return ran{out: out.out.String(), err: errOut.String()}
}

func TestWatchRevisions(t *testing.T) {
	s := newServer(t)
	s.streams(
		[]string{revision(t, 3, true), revision(t, 3, true), revision(t, 30, true, "tour", ""), revision(t, 30, true)},
		[]string{revision(t, 30, true), revision(t, 30, false), `{"error": {"message": "authz restarts"}}`},
		[]string{revision(t, 31, true)},
	)
	s.watch(t, " 31 ").want(t, exitYes, `CLUSTERROLES CRBINDINGS   ROLES        ROLEBINDINGS FOLLOWING CHANGED
1            2            3            4            yes
1            2            30           4            yes       tour,*
1            2            30           4            no
1            2            31           4            yes
`, "Warning: the stream ended and is asked for again: the server closed it\nWarning: the stream ended and is asked for again: authz restarts\n")

	// Each message in a line, those included that say nothing new.
	s.streams([]string{revision(t, 3, true), revision(t, 3, true), revision(t, 4, true)})
	got := s.watch(t, `"roles":"4"`, "-o", "json")
	if strings.Count(got.out, "\n") != 3 || strings.Count(got.out, `"roles":"3"`) != 2 {
		t.Errorf("-o json printed, want each message in a line:\n%s", got.out)
	}
	if got := s.watch(t, " 4 ", "--no-headers"); strings.Contains(got.out, "ROLES") {
		t.Errorf("--no-headers printed:\n%s", got.out)
	}
	if got := s.run(t, "", "watch-revisions", "--timeout=10ms"); got.code != exitYes || got.err != "" {
		t.Errorf("--timeout: exit code %d, %s", got.code, got.err)
	}
	newServer(t).run(t, "", "watch-revisions").wantError(t, "is it a Trigate?", `no /gates/authz/v1/watch-policy-revision`)
}
