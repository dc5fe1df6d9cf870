package client_test

import (
	"context"
	"crypto/elliptic"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/warning"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/trigate/trigate/services/authn/client"
	"github.com/trigate/trigate/services/authn/internal/authntest"
	"github.com/trigate/trigate/services/internal/servetest"
)

// outcome is all that comes of the authentication of a request.
type outcome struct {
	User        user.Info
	Audiences   authenticator.Audiences
	OK          bool
	Error       string
	Warnings    []string
	Annotations map[string]string
}

type warnings struct {
	mu    sync.Mutex
	texts []string
}

func (w *warnings) AddWarning(agent, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, agent+text)
}

const staleAnnotation = "authentication.k8s.io/stale-token"

// currentTime is in some errors.
var currentTime = regexp.MustCompile(`current time .*? m=\S+ `)

// requestShapes are the ways in which a token comes.
var requestShapes = map[string]func(context.Context, string) *http.Request{
	"header":    headerRequest,
	"websocket": websocketRequest,
}

func ask(ctx context.Context, a authenticator.Request, request func(context.Context, string) *http.Request, token string, audiences []string) outcome {
	recorded := &warnings{}
	ctx = warning.WithWarningRecorder(audit.WithAuditContext(ctx), recorded)
	if audiences != nil {
		ctx = authenticator.WithAudiences(ctx, audiences)
	}
	response, ok, err := a.AuthenticateRequest(request(ctx, token))
	got := outcome{OK: ok, Warnings: recorded.texts, Annotations: audit.AuditContextFrom(ctx).GetEventAnnotations()}
	if response != nil {
		got.User, got.Audiences = response.User, response.Audiences
	}
	if err != nil {
		got.Error = currentTime.ReplaceAllString(err.Error(), "current time ")
	}
	if text, ok := got.Annotations[staleAnnotation]; ok {
		// It counts seconds.
		got.Annotations[staleAnnotation], _, _ = strings.Cut(text, ", seconds")
	}
	return got
}

// A token in the table, and what the stock chain makes of it: without that, two
// chains that refuse everything would agree.
type tokenCase struct {
	token string
	// user is the expected name, if the token is good for the API.
	user string
	// audiences of the question. Nil: none are in the context.
	audiences []string
}

func TestParity(t *testing.T) {
	s := newSetup(t)
	issuerKey := authntest.NewRSAKey(t)
	oidcIssuer := authntest.NewIssuer(t, issuerKey, "provider-key")
	_, webhookConfig := authntest.NewWebhook(t, reviewToken)
	tokenFile := writeTokenFile(t, strings.Join([]string{
		`file-token,alice,uid-1,"developers,ops,system:unusual"`,
		`file-unicode,gräfin-名前,uid-ü,"gruppe ä,グループ"`,
		"file-latin1,gr\xe4fin,uid-\xff,\"gruppe \xe4,plain\"",
		"file-latin1-t\xf6ken,other,uid-2",
		`file token with space,spacy,uid-3`,
		`file-no-name,,`,
		`file-empty-group,eve,uid-4,""`,
		`file-authenticated,auth,uid-5,"system:authenticated,x"`,
		`file-anonymous,system:anonymous,uid-6,"x"`,
		`a,short,uid-7`,
	}, "\n"))
	s.change = func(o *kubeoptions.BuiltInAuthenticationOptions) {
		o.TokenFile.TokenFile = tokenFile
		o.WebHook.ConfigFile, o.WebHook.Version = webhookConfig, "v1"
		o.AuthenticationConfigFile = writeAuthenticationConfig(t, oidcIssuer)
	}
	cases := parityCases(t, s, oidcIssuer.URL, issuerKey)

	stock := newStock(t, s)
	conn := newService(t, s).connect(t)
	ours := gatewayChain(client.NewToken(conn))
	awaitIssuer(t, stock, ours, oidcToken(t, oidcIssuer.URL, issuerKey, nil))

	for _, name := range slices.Sorted(maps.Keys(cases)) {
		for shape, request := range requestShapes {
			t.Run(name+"/"+shape, func(t *testing.T) {
				c := cases[name]
				want := ask(t.Context(), stock, request, c.token, c.audiences)
				got := ask(t.Context(), ours, request, c.token, c.audiences)
				if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("AuthenticateRequest(%s) differs from stock (-stock +ours):\n%s", name, diff)
				}
				if shape != "header" && (!want.OK || c.user == "") {
					return // what is in the table is about the header
				}
				if want.OK != (c.user != "") {
					t.Fatalf("stock says %+v, want user %q", want, c.user)
				}
				if want.OK && want.User.GetName() != c.user {
					t.Errorf("stock says user %q, want %q", want.User.GetName(), c.user)
				}
			})
		}
	}
}

// reviewToken is a webhook of every temper.
func reviewToken(spec authenticationv1.TokenReviewSpec) authenticationv1.TokenReviewStatus {
	switch {
	case strings.HasPrefix(spec.Token, "hook-good"):
		return authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: spec.Audiences, User: authenticationv1.UserInfo{
			Username: "hooked", UID: "hook-uid", Groups: slices.Repeat([]string{"g"}, 2000),
			Extra: map[string]authenticationv1.ExtraValue{
				"example.com/UPPER": {"B", "a", "a"},
				"example.com/upper": {"c"},
				"empty":             {},
				"ключ":              {"значение", ""},
			},
		}}
	case spec.Token == "hook-nobody":
		return authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: spec.Audiences}
	case spec.Token == "hook-other-audience":
		return authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: []string{"elsewhere"}, User: authenticationv1.UserInfo{Username: "x"}}
	case spec.Token == "hook-error":
		return authenticationv1.TokenReviewStatus{Error: "the hook does not like this"}
	}
	return authenticationv1.TokenReviewStatus{}
}

// writeAuthenticationConfig writes a file that gateway and service can share: its
// part "anonymous" is the gateway's.
func writeAuthenticationConfig(t testing.TB, oidcIssuer *authntest.Remote) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "authentication.yaml")
	servetest.WriteFile(t, path, fmt.Appendf(nil, `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions: [{path: /livez}]
jwt:
- issuer:
    url: %s
    audiences: [kubernetes, other]
    audienceMatchPolicy: MatchAny
    certificateAuthority: %q
  claimMappings:
    username: {expression: '"oidc:" + claims.sub'}
    groups: {expression: 'has(claims.groups) ? claims.groups : []'}
    uid: {claim: uid}
    extra:
    - {key: example.com/tier, valueExpression: 'has(claims.tier) ? claims.tier : ""'}
  claimValidationRules:
  - {expression: 'claims.sub != "banned"', message: banned here}
  userValidationRules:
  - {expression: '!user.username.startsWith("system:")', message: reserved name}
`, oidcIssuer.URL, oidcIssuer.CAPEM))
	return path
}

func oidcToken(t testing.TB, issuerURL string, key authntest.Key, change func(authntest.Claims) authntest.Claims) string {
	t.Helper()
	claims := authntest.Claims{
		"iss": issuerURL, "aud": "kubernetes", "sub": "jane", "uid": "oidc-uid",
		"exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(),
		"groups": []string{"a", "b", "ö"}, "tier": "gold",
	}
	if change != nil {
		claims = change(claims)
	}
	return authntest.Sign(t, key, "provider-key", claims)
}

// awaitIssuer waits until both chains have read the issuer's keys.
func awaitIssuer(t testing.TB, stock, ours authenticator.Request, token string) {
	t.Helper()
	servetest.Eventually(t, func() error {
		for _, a := range []authenticator.Request{stock, ours} {
			if got := ask(t.Context(), a, headerRequest, token, nil); !got.OK {
				return errors.New(got.Error)
			}
		}
		return nil
	})
}

func parityCases(t *testing.T, s *setup, oidcURL string, oidcKey authntest.Key) map[string]tokenCase {
	const cart = "system:serviceaccount:shop:cart"
	claims := authntest.ServiceAccountClaims(issuer, "shop", "cart", "uid-of-cart", []string{issuer}, nil)
	bound := func(private map[string]any) authntest.Claims {
		return authntest.ServiceAccountClaims(issuer, "shop", "cart", "uid-of-cart", []string{issuer}, private)
	}
	ref := func(name, uid string) map[string]any { return map[string]any{"name": name, "uid": uid} }
	sign := func(c authntest.Claims) string { return authntest.Sign(t, s.key, "", c) }
	now := time.Now()
	valid := sign(claims)
	parts := strings.Split(valid, ".")
	stranger, ecdsaKey := authntest.NewRSAKey(t), authntest.NewECDSAKey(t, elliptic.P256())

	cases := map[string]tokenCase{
		"service account":                         {token: valid, user: cart},
		"service account, old issuer":             {token: sign(claims.With("iss", oldIssuer)), user: cart},
		"service account, key that only verifies": {token: authntest.Sign(t, s.oldKey, "", claims), user: cart},
		"service account, several audiences":      {token: sign(claims.With("aud", []string{otherAud, issuer})), user: cart},
		"service account, no jti":                 {token: sign(claims.With("jti", nil)), user: cart},
		"service account, pod":                    {token: sign(bound(map[string]any{"pod": ref("cart-0", "uid-of-cart-0"), "node": ref("node-1", "uid-of-node-1")})), user: cart},
		"service account, secret":                 {token: sign(bound(map[string]any{"secret": ref("bound", "uid-of-bound")})), user: cart},
		"service account, node":                   {token: sign(bound(map[string]any{"node": ref("node-1", "uid-of-node-1")})), user: cart},
		"service account, stale":                  {token: sign(bound(map[string]any{"warnafter": now.Add(-time.Minute).Unix()})), user: cart},
		"service account, not stale yet":          {token: sign(bound(map[string]any{"warnafter": now.Add(time.Minute).Unix()})), user: cart},
		"service account, no kid":                 {token: authntest.SignWithoutKeyID(t, s.key, claims), user: cart},

		"wrong pod uid":                 {token: sign(bound(map[string]any{"pod": ref("cart-0", "other")}))},
		"missing pod":                   {token: sign(bound(map[string]any{"pod": ref("cart-9", "x")}))},
		"missing secret":                {token: sign(bound(map[string]any{"secret": ref("none", "x")}))},
		"missing node":                  {token: sign(bound(map[string]any{"node": ref("node-9", "x")}))},
		"missing account":               {token: sign(authntest.ServiceAccountClaims(issuer, "shop", "nobody", "x", []string{issuer}, nil))},
		"deleted account":               {token: sign(authntest.ServiceAccountClaims(issuer, "shop", "gone", "uid-of-gone", []string{issuer}, nil))},
		"wrong account uid":             {token: sign(authntest.ServiceAccountClaims(issuer, "shop", "cart", "other", []string{issuer}, nil))},
		"webhook bound":                 {token: sign(bound(map[string]any{"validatingwebhookconfiguration": ref("hook", "x")}))},
		"expired":                       {token: sign(claims.With("exp", now.Add(-time.Hour).Unix()))},
		"not yet valid":                 {token: sign(claims.With("nbf", now.Add(time.Hour).Unix()))},
		"issued in the future":          {token: sign(claims.With("iat", now.Add(time.Hour).Unix()))},
		"wrong issuer":                  {token: sign(claims.With("iss", "https://evil.example.com"))},
		"no issuer":                     {token: sign(claims.With("iss", nil))},
		"wrong audience":                {token: sign(claims.With("aud", []string{otherAud}))},
		"no audience":                   {token: sign(claims.With("aud", nil)), user: cart},
		"wrong signature":               {token: parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(make([]byte, 256))},
		"other token's payload":         {token: parts[0] + "." + strings.Split(sign(claims.With("sub", "x")), ".")[1] + "." + parts[2]},
		"stranger's key":                {token: authntest.Sign(t, stranger, "", claims)},
		"stranger's key, our kid":       {token: authntest.Sign(t, stranger, keyID(t, s.key), claims)},
		"wrong kid":                     {token: authntest.Sign(t, s.key, "nobody-has-this-kid", claims)},
		"alg none":                      {token: authntest.Unsigned(t, claims)},
		"alg HS256 with the public key": {token: authntest.SignHMAC(t, s.key.PublicPEM, claims)},
		"alg ES256":                     {token: authntest.Sign(t, ecdsaKey, "", claims)},
		"no signature":                  {token: parts[0] + "." + parts[1] + "."},
		"truncated":                     {token: valid[:len(valid)-40]},
		"truncated in payload":          {token: valid[:len(parts[0])+20]},
		"one part":                      {token: parts[0]},
		"four parts":                    {token: valid + ".x"},
		"JSON serialisation":            {token: `{"payload":"` + parts[1] + `","signatures":[]}`},
		"100 KiB":                       {token: strings.Repeat("x", 100<<10)},
		"100 KiB JWT":                   {token: sign(claims.With("padding", strings.Repeat("y", 100<<10))), user: cart},
		"dots":                          {token: ".."},
		"empty":                         {token: ""},
		"newline behind":                {token: valid + "\n", user: cart},
		"newline in front":              {token: "\n" + valid, user: cart},
		"newline within":                {token: parts[0] + ".\n" + parts[1] + "." + parts[2], user: cart},
		"space behind":                  {token: valid + " and more", user: cart},
		"space in front":                {token: " " + valid},
		"zero byte":                     {token: valid + "\x00"},
		"not UTF-8":                     {token: "\xff\xfe" + valid},
		"other claims' unicode":         {token: sign(claims.With("sub", "система:\u202eevil")), user: cart},

		"for another audience, asked for it": {token: sign(claims.With("aud", []string{otherAud})), audiences: []string{otherAud}, user: cart},
		"for both, asked for one":            {token: sign(claims.With("aud", []string{otherAud, issuer})), audiences: []string{otherAud}, user: cart},
		"for both, asked for both":           {token: sign(claims.With("aud", []string{otherAud, issuer})), audiences: []string{issuer, otherAud, "third"}, user: cart},
		"for the API, asked for another":     {token: valid, audiences: []string{otherAud}},
		"for the API, asked for it":          {token: valid, audiences: []string{issuer}, user: cart},
		"audience that is not UTF-8":         {token: valid, audiences: []string{"\xff", issuer}, user: cart},

		"file":                       {token: "file-token", user: "alice"},
		"file, API audience":         {token: "file-token", audiences: []string{issuer, oldIssuer}, user: "alice"},
		"file, other audience":       {token: "file-token", audiences: []string{otherAud}},
		"file, unicode":              {token: "file-unicode", user: "gräfin-名前"},
		"file, user not UTF-8":       {token: "file-latin1", user: "gr\xe4fin"},
		"file, token not UTF-8":      {token: "file-latin1-t\xf6ken", user: "other"},
		"file, token with spaces":    {token: "file token with space"},
		"file, prefix of one":        {token: "file-token x", user: "alice"},
		"file, empty group":          {token: "file-empty-group", user: "eve"},
		"file, system:authenticated": {token: "file-authenticated", user: "auth"},
		"file, system:anonymous":     {token: "file-anonymous", user: "system:anonymous"},
		"file, one letter":           {token: "a", user: "short"},

		"bootstrap":             {token: "abcdef.0123456789abcdef", user: "system:bootstrap:abcdef"},
		"bootstrap, API":        {token: "abcdef.0123456789abcdef", audiences: []string{issuer}, user: "system:bootstrap:abcdef"},
		"bootstrap, bad secret": {token: "abcdef.0123456789abcdee"},
		"bootstrap, bad id":     {token: "abcdeg.0123456789abcdef"},
		"bootstrap, upper case": {token: "ABCDEF.0123456789abcdef"},
		"bootstrap, truncated":  {token: "abcdef.0123456789abcde"},
		"bootstrap, newline":    {token: "abcdef.0123456789abcdef\n", user: "system:bootstrap:abcdef"},
		"bootstrap, two":        {token: "abcdef.0123456789abcdef,abcdef.0123456789abcdef"},

		"webhook":                 {token: "hook-good", user: "hooked"},
		"webhook, audience":       {token: "hook-good-2", audiences: []string{issuer, otherAud}, user: "hooked"},
		"webhook, other audience": {token: "hook-other-audience", audiences: []string{issuer}},
		"webhook, error":          {token: "hook-error"},
	}
	maps.Copy(cases, oidcCases(t, oidcURL, oidcKey))
	cases["legacy"] = tokenCase{token: s.legacyToken(t, "manual", nil), user: cart}
	cases["legacy, automatic"] = tokenCase{token: s.legacyToken(t, "automatic", nil), user: cart}
	cases["legacy, invalid since"] = tokenCase{token: s.legacyToken(t, "invalid", map[string]string{serviceaccount.InvalidSinceLabelKey: "2020-01-01"})}
	return cases
}

func oidcCases(t *testing.T, issuerURL string, key authntest.Key) map[string]tokenCase {
	with := func(name string, value any) string {
		return oidcToken(t, issuerURL, key, func(c authntest.Claims) authntest.Claims { return c.With(name, value) })
	}
	plain := authntest.Claims{"iss": issuerURL, "aud": "kubernetes", "sub": "jane", "uid": "u", "exp": time.Now().Add(time.Hour).Unix()}
	// twice has a claim a second time, by some spelling of its name.
	twice := func(name string) string {
		return fmt.Sprintf(`{"iss":%q,"aud":"kubernetes","sub":"jane","uid":"u","exp":%d,"tier":"a",%q:"b"}`,
			issuerURL, time.Now().Add(time.Hour).Unix(), name)
	}
	return map[string]tokenCase{
		"oidc":                   {token: with("sub", "jane"), user: "oidc:jane"},
		"oidc, second audience":  {token: with("aud", []string{"x", "other"}), user: "oidc:jane"},
		"oidc, no groups":        {token: with("groups", nil), user: "oidc:jane"},
		"oidc, unicode":          {token: with("sub", "Ж\u200d😀"), user: "oidc:Ж\u200d😀"},
		"oidc, API audience":     {token: with("tier", "x"), audiences: []string{issuer}, user: "oidc:jane"},
		"oidc, other audience":   {token: with("tier", "x"), audiences: []string{otherAud}},
		"oidc, wrong audience":   {token: with("aud", "elsewhere")},
		"oidc, expired":          {token: with("exp", time.Now().Add(-time.Hour).Unix())},
		"oidc, banned by rule":   {token: with("sub", "banned")},
		"oidc, no sub":           {token: with("sub", nil)},
		"oidc, number for a uid": {token: with("uid", 7)},
		"oidc, not yet valid":    {token: with("nbf", time.Now().Add(time.Hour).Unix())},
		"oidc, wrong issuer":     {token: with("iss", "https://evil.example.com")},
		"oidc, truncated":        {token: with("sub", "jane")[:400]},
		"oidc, newline within":   {token: strings.Replace(with("sub", "jane"), ".", ".\n", 1), user: "oidc:jane"},
		"oidc, newline behind":   {token: with("sub", "jane") + "\n", user: "oidc:jane"},
		"oidc, 100 KiB":          {token: with("padding", strings.Repeat("y", 100<<10)), user: "oidc:jane"},
		"oidc, huge groups":      {token: with("groups", slices.Repeat([]string{"größe", "g"}, 2000)), user: "oidc:jane"},
		"oidc, wrong signature":  {token: authntest.Sign(t, authntest.NewRSAKey(t), "provider-key", plain)},
		"oidc, alg none":         {token: authntest.Unsigned(t, plain)},
		"oidc, no exp":           {token: with("exp", nil)},
		"oidc, a claim twice":    {token: authntest.SignPayload(t, key, "provider-key", twice("tier")), user: "oidc:jane"},
		"oidc, another case":     {token: authntest.SignPayload(t, key, "provider-key", twice("TIER")), user: "oidc:jane"},
		"oidc, unknown kid":      {token: authntest.Sign(t, key, "other-kid", authntest.Claims{"iss": issuerURL, "aud": "kubernetes", "sub": "x", "exp": time.Now().Add(time.Hour).Unix()})},
	}
}
