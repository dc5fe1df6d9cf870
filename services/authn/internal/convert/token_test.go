package convert

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// overTheWire encodes a message and reads it again.
func overTheWire[M proto.Message](t testing.TB, m M) M {
	t.Helper()
	encoded, err := proto.Marshal(m)
	if err != nil {
		t.Fatalf("encoding %v: %v", m, err)
	}
	decoded := m.ProtoReflect().New().Interface()
	if err := proto.Unmarshal(encoded, decoded); err != nil {
		t.Fatalf("decoding %v: %v", m, err)
	}
	return decoded.(M)
}

func TestTokenRequestRoundTrip(t *testing.T) {
	for name, c := range map[string]struct {
		token     string
		audiences authenticator.Audiences
	}{
		"plain":                   {"token", nil},
		"audiences":               {"token", authenticator.Audiences{"a", "b", ""}},
		"percent":                 {"100%41", authenticator.Audiences{"%"}},
		"token not UTF-8":         {"\xff%41 ", authenticator.Audiences{"ü", "%41"}},
		"audience not UTF-8":      {"tökén%", authenticator.Audiences{"\xfe"}},
		"line breaks and a space": {"a b\nc\td\x00", nil},
		"empty":                   {"", nil},
	} {
		t.Run(name, func(t *testing.T) {
			token, audiences, err := FromTokenRequest(overTheWire(t, ToTokenRequest(c.token, c.audiences)))
			if err != nil {
				t.Fatalf("FromTokenRequest() = %v, want no error", err)
			}
			if token != c.token || !reflect.DeepEqual(audiences, c.audiences) {
				t.Errorf("FromTokenRequest(ToTokenRequest(%q, %q)) = %q, %q", c.token, c.audiences, token, audiences)
			}
		})
	}
}

func TestFromTokenRequestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		request *authnv1.AuthenticateTokenRequest
		want    string
	}{
		"token too long":      {&authnv1.AuthenticateTokenRequest{Token: strings.Repeat("s", MaxTokenBytes+1)}, "token: is of 1048577 bytes"},
		"bad escape":          {&authnv1.AuthenticateTokenRequest{Token: "secret%zz", PercentEncoded: true}, "token: malformed escape"},
		"bad audience":        {&authnv1.AuthenticateTokenRequest{Token: "secret", Audiences: []string{"a", "%"}, PercentEncoded: true}, "audiences[1]: incomplete escape"},
		"long after decoding": {&authnv1.AuthenticateTokenRequest{Token: strings.Repeat("%41", MaxTokenBytes+1), PercentEncoded: true}, "token: is of 1048577 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := FromTokenRequest(c.request)
			if e, ok := rpcerr.As(err); !ok || e.Reason != rpcerr.ReasonInvalidArgument || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("FromTokenRequest() = %v, want an InvalidArgument %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("FromTokenRequest() = %v, which has the token", err)
			}
		})
	}
}

var verdicts = map[string]Verdict{
	"unrecognised": {},
	"refused":      {Refusal: "token has expired"},
	"refused, not UTF-8": {
		Refusal: "user \xff is not welcome, 100%",
	},
	"good": {Response: &authenticator.Response{User: &user.DefaultInfo{Name: "jane"}}},
	"good, with all": {
		Response: &authenticator.Response{
			User: &user.DefaultInfo{Name: "jane", UID: "1", Groups: []string{"", "b", "a"}, Extra: map[string][]string{
				"K": {"x", "x"}, "k": {""}, "none": {},
			}},
			Audiences: authenticator.Audiences{"a", "b"},
		},
		Warnings:    []string{"first", "second"},
		Annotations: map[string]string{"b.example.com/x": "1", "a.example.com/y": ""},
	},
	"good, kept": {
		Response: &authenticator.Response{User: &user.DefaultInfo{Name: "jane"}},
		Lifetime: Lifetime{
			Dependencies: []Object{
				{Resource: ServiceAccounts, Namespace: "shop", Name: "cart", UID: "1", ResourceVersion: 1<<64 - 1},
				{Resource: Nodes, Name: "node-1", UID: "2"},
			},
			KeepUntil:     time.Unix(1_900_000_000, 1).UTC(),
			Configuration: "digest",
		},
	},
	"good, nothing of it UTF-8": {
		Response: &authenticator.Response{
			User:      &user.DefaultInfo{Name: "\xff", UID: "\xfe", Groups: []string{"\xfd"}, Extra: map[string][]string{"\xfc%": {"\xfb"}}},
			Audiences: authenticator.Audiences{"\xfa"},
		},
		Warnings:    []string{"\xf9"},
		Annotations: map[string]string{"\xf8": "\xf7"},
	},
}

func TestVerdictRoundTrip(t *testing.T) {
	for name, want := range verdicts {
		t.Run(name, func(t *testing.T) {
			got, err := FromTokenResponse(overTheWire(t, ToTokenResponse(want)))
			if err != nil {
				t.Fatalf("FromTokenResponse() = %v, want no error", err)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("FromTokenResponse(ToTokenResponse(v)) differs from v (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFromTokenResponseNonsense(t *testing.T) {
	u := &authnv1.UserInfo{Name: "jane"}
	for name, m := range map[string]*authnv1.AuthenticateTokenResponse{
		"good, of nobody":      {Authenticated: true},
		"bad, of somebody":     {User: u},
		"good, and an error":   {Authenticated: true, User: u, Error: "no"},
		"malformed escape":     {Authenticated: true, User: &authnv1.UserInfo{Name: "%", PercentEncoded: true}},
		"malformed audience":   {Authenticated: true, User: u, Audiences: []string{"%zz"}, PercentEncoded: true},
		"kept until never":     {Authenticated: true, User: u, KeepUntil: &timestamppb.Timestamp{Nanos: -1}},
		"a key of extra twice": {Authenticated: true, User: &authnv1.UserInfo{Extra: []*authnv1.ExtraEntry{{Key: "k"}, {Key: "k"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			if v, err := FromTokenResponse(m); err == nil {
				t.Errorf("FromTokenResponse() = %+v, want an error", v)
			}
		})
	}
}

func TestRevocationsRoundTrip(t *testing.T) {
	for name, want := range map[string]Revocations{
		"nothing": {},
		"all": {
			Revoked: []Revocation{
				{Object: Object{Resource: Pods, Namespace: "shop", Name: "cart-0", UID: "1", ResourceVersion: 7}, Deleted: true},
				{Object: Object{Resource: Secrets, Namespace: "shop", Name: "token", UID: "2", ResourceVersion: 8}},
			},
			Configuration: "digest",
			Following:     true,
		},
	} {
		if diff := cmp.Diff(want, FromRevocations(overTheWire(t, ToRevocations(want)))); diff != "" {
			t.Errorf("%s: the round trip differs (-want +got):\n%s", name, diff)
		}
	}
}

// FuzzAuthenticateTokenRequest reads any message as the service does: what it
// accepts has to come out of its own encoding unchanged.
func FuzzAuthenticateTokenRequest(f *testing.F) {
	for _, m := range []*authnv1.AuthenticateTokenRequest{
		ToTokenRequest("token", nil),
		ToTokenRequest("\xff", authenticator.Audiences{"a"}),
		{Token: "%", PercentEncoded: true},
	} {
		seed, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m := &authnv1.AuthenticateTokenRequest{}
		if proto.Unmarshal(data, m) != nil {
			return
		}
		token, audiences, err := FromTokenRequest(m)
		if err != nil {
			return
		}
		again, audiencesAgain, err := FromTokenRequest(overTheWire(t, ToTokenRequest(token, audiences)))
		if err != nil || again != token || !reflect.DeepEqual(audiencesAgain, audiences) {
			t.Errorf("%q, %q became %q, %q, %v", token, audiences, again, audiencesAgain, err)
		}
	})
}

// FuzzAuthenticateTokenResponse reads any message as the client does.
func FuzzAuthenticateTokenResponse(f *testing.F) {
	for _, v := range verdicts {
		seed, err := proto.Marshal(ToTokenResponse(v))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m := &authnv1.AuthenticateTokenResponse{}
		if proto.Unmarshal(data, m) != nil {
			return
		}
		v, err := FromTokenResponse(m)
		if err != nil {
			return
		}
		if (v.Response != nil) != m.GetAuthenticated() || v.Response != nil && v.Response.User == nil {
			t.Fatalf("FromTokenResponse(%v) = %+v", m, v)
		}
		again, err := FromTokenResponse(overTheWire(t, ToTokenResponse(v)))
		if err != nil {
			t.Fatalf("FromTokenResponse(ToTokenResponse(%+v)) = %v", v, err)
		}
		if diff := cmp.Diff(v, again, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("round trip of %+v (-want +got):\n%s", v, diff)
		}
	})
}
