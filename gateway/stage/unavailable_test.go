package stage

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	authzclient "github.com/trigate/trigate/services/authz/client"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// downConn is a connection to a service that is not there. It stands for a real
// one, which the end-to-end tests have.
type downConn struct{}

func (downConn) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return status.Error(codes.Unavailable, "connection refused")
}

func (downConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unavailable, "connection refused")
}

// undecidedError is what a gate's client returns when the gate is down.
func undecidedError(t *testing.T) error {
	t.Helper()
	_, _, err := authzclient.New(downConn{}).Authorize(t.Context(), authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "ann"}})
	if err == nil {
		t.Fatal("Authorize without a service = nil error")
	}
	return err
}

func TestWithUnavailable(t *testing.T) {
	undecided := undecidedError(t)
	review := &genericapirequest.RequestInfo{Verb: "create", APIGroup: "authorization.k8s.io", APIVersion: "v1", Resource: "subjectaccessreviews", IsResourceRequest: true}
	pods := &genericapirequest.RequestInfo{Verb: "create", APIVersion: "v1", Resource: "pods", IsResourceRequest: true}
	tests := []struct {
		name string
		info *genericapirequest.RequestInfo
		err  error
		code int
		want int
	}{
		{"unauthorized since authn is down", pods, undecided, http.StatusUnauthorized, http.StatusServiceUnavailable},
		{"internal error since authz is down", pods, undecided, http.StatusInternalServerError, http.StatusServiceUnavailable},
		{"review that carries the failure", review, undecided, http.StatusCreated, http.StatusServiceUnavailable},
		{"write that went through all the same", pods, undecided, http.StatusCreated, http.StatusCreated},
		{"evaluation error of a decision", pods, errors.New("role not found"), http.StatusInternalServerError, http.StatusInternalServerError},
		{"bad token", pods, nil, http.StatusUnauthorized, http.StatusUnauthorized},
		{"success", pods, nil, http.StatusOK, http.StatusOK},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			inner := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				ctx := genericapirequest.WithRequestInfo(req.Context(), test.info)
				if test.err != nil {
					noteFailure(ctx, gateAuthz, test.err)
				}
				w.Header().Set("Content-Length", "5")
				w.WriteHeader(test.code)
				if _, err := w.Write([]byte("inner")); err != nil {
					t.Errorf("Write: %v", err)
				}
			})
			server := httptest.NewServer(withUnavailable(inner, legacyscheme.Codecs, newUndecidedRequests()))
			defer server.Close()
			resp, err := http.Get(server.URL + "/api/v1/namespaces/default/pods")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != test.want {
				t.Errorf("status = %d, want %d", resp.StatusCode, test.want)
			}
			if test.want != http.StatusServiceUnavailable {
				return
			}
			if got := resp.Header.Get("Retry-After"); got != "1" {
				t.Errorf("Retry-After = %q, want 1", got)
			}
			var body metav1.Status
			if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
				t.Fatalf("the body is no Status: %v", err)
			}
			if body.Reason != metav1.StatusReasonServiceUnavailable || body.Code != http.StatusServiceUnavailable {
				t.Errorf("body = %+v, want reason ServiceUnavailable and code 503", body)
			}
		})
	}
}

// TestGatedWrites wants writes to wait for the gates, and reads not to.
func TestGatedWrites(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	down := errors.New("no gate")
	client := &http.Client{Transport: &gatedWrites{
		next: http.DefaultTransport,
		wait: func(context.Context) error { return down },
	}}
	for method, want := range map[string]error{
		http.MethodGet: nil, http.MethodHead: nil,
		http.MethodPost: down, http.MethodPut: down, http.MethodPatch: down, http.MethodDelete: down,
	} {
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		if !errors.Is(err, want) {
			t.Errorf("%s = %v, want %v", method, err, want)
		}
	}
}

// TestGatedWritesEnd wants a write that waits for a gate to fail when the server ends,
// and one that need not wait to go on.
func TestGatedWritesEnd(t *testing.T) {
	server, end := context.WithCancel(t.Context())
	away := untilEnd(server, func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	ended := make(chan error, 1)
	go func() { ended <- away(t.Context()) }()
	end()
	if err := <-ended; !errors.Is(err, errEnding) {
		t.Errorf("a write that waited = %v, want %v", err, errEnding)
	}
	if err := untilEnd(server, func(context.Context) error { return nil })(t.Context()); err != nil {
		t.Errorf("a write that need not wait = %v, want nil", err)
	}
}
