package server_test

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/admission/server"
	"github.com/trigate/trigate/services/internal/interceptor"
)

// TestSeen wants what a gateway knows of the policy to be told before the plugins run,
// and what a person claims to be ignored: all questions would wait for it.
func TestSeen(t *testing.T) {
	want := &authzv1.PolicyRevision{Roles: 7}
	for name, test := range map[string]struct {
		caller interceptor.Caller
		told   bool
	}{
		"a gateway": {interceptor.Caller{Peer: interceptor.PeerGateway}, true},
		"a service": {interceptor.Caller{Peer: interceptor.PeerAuthn}, false},
		"a person":  {interceptor.Caller{User: &user.DefaultInfo{Name: "jane"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var seen []*authzv1.PolicyRevision
			handlers := server.New(server.Config{
				Plugins: admission.NewChainHandler(),
				Seen:    func(revision *authzv1.PolicyRevision) { seen = append(seen, revision) },
			})
			attributes := &admissionv1.Attributes{
				Operation: admissionv1.Operation_OPERATION_CREATE, Kind: fuzzed[0].kind, Resource: fuzzed[0].resource, Object: jsonOf(fuzzed[0].kind),
			}
			ctx := interceptor.WithCaller(t.Context(), test.caller)
			if _, err := handlers.Admit(ctx, &admissionv1.AdmitRequest{Attributes: attributes, AuthorizeAtLeastAsFreshAs: want}); err != nil {
				t.Fatal(err)
			}
			if _, err := handlers.Validate(ctx, &admissionv1.ValidateRequest{Attributes: attributes, AuthorizeAtLeastAsFreshAs: want}); err != nil {
				t.Fatal(err)
			}
			if told := len(seen) == 2 && proto.Equal(seen[0], want) && proto.Equal(seen[1], want); told != test.told {
				t.Errorf("seen = %v, want it told = %v", seen, test.told)
			}
		})
	}
}
