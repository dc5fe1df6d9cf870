package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
)

func TestWhoAmI(t *testing.T) {
	s := newServer(t)
	var asked *authnv1.AuthenticateTokenRequest
	answer(t, s, pathToken, func(q *authnv1.AuthenticateTokenRequest) (proto.Message, error) {
		asked = q
		switch q.GetToken() {
		case "ann's":
			return &authnv1.AuthenticateTokenResponse{
				Authenticated: true,
				User: &authnv1.UserInfo{
					Name: "ann", Uid: "7", Groups: []string{"dev", "ops"}, Extra: []*authnv1.ExtraEntry{{Key: "example.com/k", Values: []string{"a\tb", "c"}}},
				},
				Audiences: []string{"vault"}, Warnings: []string{"it is old"},
			}, nil
		case "expired":
			return &authnv1.AuthenticateTokenResponse{Error: "token has expired"}, nil
		default:
			return &authnv1.AuthenticateTokenResponse{}, nil
		}
	})
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("ann's\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const (
		ann = `Warning: it is old
ATTRIBUTE              VALUE
Username               ann
UID                    7
Groups                 dev, ops, system:authenticated
Extra: example.com/k   a\tb, c
Audiences              vault
`
		seen = "Warning: other users of this machine can see a token on a command line; --token - reads it from the standard input\n"
	)
	for name, tc := range map[string]struct {
		args      []string
		stdin     string
		code      int
		out, err  string
		audiences []string
	}{
		"from the standard input":       {args: []string{"--token", "-"}, stdin: "ann's\n", out: ann},
		"from it as a file":             {args: []string{"--token-file", "-", "--audience", "vault", "--audience", "x"}, stdin: " ann's", out: ann, audiences: []string{"vault", "x"}},
		"from a file":                   {args: []string{"--token-file", file}, out: ann},
		"on the command line":           {args: []string{"--token", "ann's"}, out: ann, err: seen},
		"one that is not good":          {args: []string{"--token", "-"}, stdin: "expired", code: exitNo, out: "no: the token is not good: token has expired\n"},
		"one that nobody knows":         {args: []string{"--token", "-"}, stdin: "other", code: exitNo, out: "no: no authenticator knows the token\n"},
		"for machines, and as not good": {args: []string{"--token", "-", "-o", "yaml"}, stdin: "expired", code: exitNo, out: "error: token has expired\n"},
	} {
		t.Run(name, func(t *testing.T) {
			asked = nil
			s.run(t, tc.stdin, append([]string{"whoami"}, tc.args...)...).want(t, tc.code, tc.out, tc.err)
			if diff := cmp.Diff(tc.audiences, asked.GetAudiences()); diff != "" {
				t.Errorf("audiences (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("the caller", func(t *testing.T) {
		s.run(t, "", "whoami").want(t, exitYes, "ATTRIBUTE              VALUE\nUsername               caller\nGroups                 callers\nExtra: example.com/k   v\n", "")
	})
	t.Run("too large", func(t *testing.T) {
		s.run(t, strings.Repeat("x", maxTokenBytes+1), "whoami", "--token", "-").wantError(t, "more than 1048576 bytes")
	})
	t.Run("no file", func(t *testing.T) {
		s.run(t, "", "whoami", "--token-file", file+".not").wantError(t, "--token-file", file+".not")
	})
	t.Run("two tokens", func(t *testing.T) {
		s.run(t, "", "whoami", "--token-file", file, "--token", "-").wantError(t, "token-file")
	})
}
