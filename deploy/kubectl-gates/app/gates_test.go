package app

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
)

// unavailable is what a gateway says while a gate is away.
func unavailable() error {
	err := apierrors.NewServiceUnavailable("authz is not reachable")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

// TestErrors wants each failure told so that a user knows what to do.
func TestErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want []string
	}{
		"no right": {
			err: apierrors.NewForbidden(schema.GroupResource{}, "", &pathError{}),
			want: []string{
				"Error from server (Forbidden): forbidden: ", `the verb "post" on the non-resource URL "/gates/authz/v1/explain"`,
				"kubectl create clusterrole gates-explain --verb=post --non-resource-url=/gates/authz/v1/explain",
			},
		},
		"not a Trigate": {
			err:  apierrors.NewNotFound(schema.GroupResource{}, "x"),
			want: []string{"Error from server (NotFound)", "The server has no /gates/authz/v1/explain: is it a Trigate?"},
		},
		"a gate that is away": {
			err:  unavailable(),
			want: []string{"Error from server (ServiceUnavailable): authz is not reachable", "kubectl gates status"},
		},
		"a bad question": {
			err:  apierrors.NewBadRequest("attributes.verb: it is empty"),
			want: []string{"Error from server (BadRequest): attributes.verb: it is empty"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			answer(t, s, pathExplain, func(*authzv1.ExplainRequest) (proto.Message, error) { return nil, tc.err })
			s.run(t, "", "explain", "get", "/healthz").wantError(t, tc.want...)
		})
	}
	t.Run("no gates", func(t *testing.T) {
		newServer(t).run(t, "", "explain", "get", "/healthz").wantError(t, "is it a Trigate?")
	})
	t.Run("no credentials", func(t *testing.T) {
		newServer(t).run(t, "", "explain", "get", "/healthz", "--token", "nobody's").wantError(t, "You must be logged in to the server")
	})
	t.Run("no server", func(t *testing.T) {
		s := newServer(t)
		s.Close()
		s.run(t, "", "explain", "get", "/healthz").wantError(t, "The connection to the server 127.0.0.1:", "was refused")
	})
	t.Run("another certificate", func(t *testing.T) {
		s := newServer(t)
		s.run(t, "", "explain", "get", "/healthz", "--tls-server-name", "elsewhere.test").wantError(t, "Unable to connect to the server", "elsewhere.test")
	})
	t.Run("no kubeconfig", func(t *testing.T) {
		s := newServer(t)
		s.kubeconfig = filepath.Join(t.TempDir(), "none")
		s.run(t, "", "explain", "get", "/healthz").wantError(t, s.kubeconfig)
	})
	t.Run("a slow gate", func(t *testing.T) {
		s := newServer(t)
		release := make(chan struct{})
		defer close(release)
		answer(t, s, pathExplain, func(*authzv1.ExplainRequest) (proto.Message, error) {
			<-release
			return nil, apierrors.NewBadRequest("too late")
		})
		s.run(t, "", "explain", "get", "/healthz", "--as", "ann", "--request-timeout", "100ms").wantError(t, "no answer in time")
	})
}

// pathError is why a path is forbidden, as the API server says it.
type pathError struct{}

// Error implements error.
func (*pathError) Error() string { return `User "ann" cannot post path "/gates/authz/v1/explain"` }

// TestRetries has a gate come back.
func TestRetries(t *testing.T) {
	s := newServer(t)
	calls := 0
	answer(t, s, pathExplain, func(*authzv1.ExplainRequest) (proto.Message, error) {
		if calls++; calls < 3 {
			return nil, unavailable()
		}
		return &authzv1.ExplainResponse{Answer: said(authzv1.Decision_DECISION_ALLOW)}, nil
	})
	s.run(t, "", "explain", "get", "/healthz", "-q").want(t, exitYes, "", "")
}

// TestNewerGateway has a gateway say more than this program knows.
func TestNewerGateway(t *testing.T) {
	s := newServer(t)
	s.objects["/gates/unknown"] = struct{}{}
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == pathExplain {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"answer": {"decision": "DECISION_ALLOW", "mood": "good"}, "news": [1]}`))
			return
		}
		s.serve(w, r)
	})
	s.run(t, "", "explain", "get", "/healthz", "-q").want(t, exitYes, "", "")
}

// TestImpersonation wants --as to name whom explain asks about, and to be kubectl's own
// flag for who-can.
func TestImpersonation(t *testing.T) {
	s := newServer(t)
	answer(t, s, pathExplain, func(*authzv1.ExplainRequest) (proto.Message, error) {
		return &authzv1.ExplainResponse{Answer: said(authzv1.Decision_DECISION_ALLOW)}, nil
	})
	answerWhoCan(t, s, nil, nil)
	var impersonated []string
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/gates/") {
			impersonated = append(impersonated, r.URL.Path+" "+r.Header.Get("Impersonate-User"))
		}
		s.serve(w, r)
	})
	s.run(t, "", "explain", "get", "/healthz", "--as", "ann", "-q").want(t, exitYes, "", "")
	// Before the command, too.
	s.run(t, "", "--as", "ann", "explain", "get", "/healthz", "-q").want(t, exitYes, "", "")
	s.run(t, "", "who-can", "get", "/healthz", "--as", "ann", "-o", "name")
	want := []string{pathExplain + " ", pathExplain + " ", pathWhoCan + " ann"}
	if strings.Join(impersonated, "\n") != strings.Join(want, "\n") {
		t.Errorf("impersonated = %q, want %q", impersonated, want)
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"explain", "--help"}, {"who-can", "-h"}, {"whoami", "-h"}, {"admit", "-h"}, {"status", "-h"}, {"watch-revisions", "-h"}, {"options"}, {"--version"}, {"completion", "bash"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			var out, errOut strings.Builder
			code := Main(args, strings.NewReader(""), &out, &errOut)
			if code != exitYes || out.Len() == 0 || errOut.Len() != 0 || strings.Contains(out.String(), "kubectl-gates <") {
				t.Errorf("exit code %d\nstdout:\n%s\nstderr:\n%s", code, &out, &errOut)
			}
			if len(args) == 2 && args[0] != "completion" && !strings.Contains(out.String(), "kubectl gates "+args[0]) {
				t.Errorf("no usage as `kubectl gates %s` in:\n%s", args[0], &out)
			}
		})
	}
}

func TestMain(m *testing.M) {
	// The caller's kubeconfig is none of the tests'.
	if err := os.Unsetenv("KUBECONFIG"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
