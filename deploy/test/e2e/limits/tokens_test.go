package limits

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

// oddTokens are no tokens of anybody.
func oddTokens() []string {
	return append([]string{
		" ", "a b", " leading", "trailing ", ".", "..", "a.b.c", "\xff.\xff.\xff", "eyJhbGciOiJSUzI1NiJ9.\xff.a", "eyJhbGciOiJSUzI1NiJ9." +
			base64.RawURLEncoding.EncodeToString([]byte("{\"iss\":\"\xff\"}")) + ".a",
		"abcdef.0123456789abcde\xff", strings.Repeat("x", 100<<10), strings.Repeat("\xff", 100<<10), strings.Repeat("a.", 50<<10),
	}, oddStrings...)
}

func TestOddBearerTokens(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns := s.Namespace(t)
		good := c.ServiceAccountToken(t, ns, "default")
		s.Hide(good, "TOKEN")
		anonymous := s.As(t, c.Anonymous(t))
		bear := func(value string) framework.RequestOption { return framework.Header("Authorization", value) }
		for _, odd := range oddTokens() {
			for _, value := range []string{"Bearer " + odd, "bearer " + odd, odd, "Bearer\t" + odd} {
				anonymous.Send(t, "GET", "/api", "", bear(value))
			}
			if len(odd) < 1<<10 {
				// A good token, and something that is not part of it.
				for _, value := range []string{"Bearer " + good + odd, "Bearer " + odd + good, "Bearer " + good + " " + odd} {
					anonymous.Send(t, "GET", "/api", "", bear(value))
				}
			}
			anonymous.Send(t, "GET", "/api", "", bear("Bearer "+odd), bear("Bearer "+good))
		}
		anonymous.Send(t, "GET", "/api", "", bear("Bearer zoë")).WantMessage(t, 401, "Unauthorized")
		anonymous.Send(t, "GET", "/api", "", bear("Bearer \xff")).WantMessage(t, 401, "Unauthorized")
		anonymous.Send(t, "GET", "/api", "", bear("Bearer "+strings.Repeat("x", 100<<10))).WantMessage(t, 401, "Unauthorized")
		anonymous.Send(t, "POST", selfSubjectReviews, selfSubjectReview, bear("Bearer "+good+" \xff")).Want(t, 201)
	})
}

func TestReviewsOfOddTokens(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns, admin := s.Namespace(t), s.Admin(t)
		good := c.ServiceAccountToken(t, ns, "default")
		s.Hide(good, "TOKEN")
		review := func(token string, audiences ...string) *framework.Answer {
			body := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences}}
			return admin.Send(t, "POST", tokenReviews, inProtobuf(t, body), asProtobuf).Want(t, 201)
		}
		refused := func(answer *framework.Answer, what string) {
			t.Helper()
			// White space alone is no token, and who has none is anonymous.
			user := answer.String(t, "status", "user", "username")
			if authenticated, _ := answer.Field(t, "status", "authenticated").(bool); authenticated && user != "system:anonymous" {
				t.Errorf("%s is authenticated as %s", what, user)
			}
		}
		for _, odd := range append([]string{"\x00", "\n", "a\nb"}, oddTokens()...) {
			what := fmt.Sprintf("%.30q", odd)
			refused(review(odd), what)
			refused(review(odd, odd), what)
			refused(review(good, odd), "a token, asked for another audience,")
			for _, token := range []string{good + odd, odd + good} {
				// A token ends at white space, and what stands after it is not looked at.
				if answer := review(token); strings.IndexFunc(odd, unicode.IsSpace) < 0 {
					refused(answer, what)
				}
			}
			body := toJSON(t, fields{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": fields{"token": odd, "audiences": []string{odd}}})
			refused(admin.Send(t, "POST", tokenReviews, body, framework.ContentType(typeJSON)).Want(t, 201), what)
		}
		for _, padded := range []string{good + " ", " " + good, good + "\n", good + "\x00"} {
			review(padded)
		}
	})
}

func TestTokensForOddAudiences(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns, admin, quiet := s.Namespace(t), s.Admin(t), c.Admin(t)
		path := core(ns, "serviceaccounts/default/token")
		many := make([]string, 5000)
		for i := range many {
			many[i] = fmt.Sprintf("audience-%d", i)
		}
		for _, audiences := range append([][]string{{""}, {"\x00"}, {"a", "\xff", "\xfe"}, {strings.Repeat("zoë", 30<<10)}, many}, each(oddStrings)...) {
			body := inProtobuf(t, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}})
			admin.Send(t, "POST", path, body, asProtobuf).Want(t, 201)
			var answer authenticationv1.TokenRequest
			fromProtobuf(t, quiet.Send(t, "POST", path, body, asProtobuf, acceptProtobuf).Want(t, 201), &answer)
			s.Say("audiences", asTheyAre(answer.Spec.Audiences))
			s.Say("audience in the token", claim(t, answer.Status.Token, "aud"))
			for _, asked := range [][]string{audiences[:1], {"other"}, {"\ufffd"}} {
				review := inProtobuf(t, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: answer.Status.Token, Audiences: asked}})
				admin.Send(t, "POST", tokenReviews, review, asProtobuf).Want(t, 201)
			}
			s.As(t, c.Token(t, answer.Status.Token)).Send(t, "GET", "/api", "").Want(t, 401)
		}
	})
}

// each makes a list of every string.
func each(list []string) [][]string {
	var lists [][]string
	for _, s := range list {
		lists = append(lists, []string{s})
	}
	return lists
}

// claim is what a token says.
func claim(t *testing.T, token, name string) any {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("%q is no token", token)
	}
	content, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims map[string]any
	if err := json.Unmarshal(content, &claims); err != nil {
		t.Fatal(err)
	}
	return claims[name]
}
