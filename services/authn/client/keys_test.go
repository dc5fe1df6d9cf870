package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	restful "github.com/emicklei/go-restful/v3"
	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/pkg/serviceaccount"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/authn/client"
	"github.com/trigate/trigate/services/authn/internal/authntest"
	"github.com/trigate/trigate/services/internal/rpcerr"
	"github.com/trigate/trigate/services/internal/servetest"
)

// run has keys fetched until the test ends.
func run(t testing.TB, keys *client.PublicKeys) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() { // waited for below
		defer close(done)
		keys.Run(ctx)
	}()
	t.Cleanup(func() { stop(); <-done })
}

func fetched(keys *client.PublicKeys) func() error {
	return func() error {
		if !keys.Fetched() {
			return fmt.Errorf("the keys have not been fetched")
		}
		return nil
	}
}

func TestPublicKeysAsUpstream(t *testing.T) {
	s := newSetup(t)
	ours := client.NewPublicKeys(newService(t, s).connect(t))
	if got := ours.GetPublicKeys(t.Context(), ""); len(got) != 0 || ours.Fetched() {
		t.Errorf("GetPublicKeys() = %v before Run, want none", got)
	}
	run(t, ours)
	servetest.Eventually(t, fetched(ours))

	var files []any
	for _, file := range []string{s.key.PublicFile, s.oldKey.PublicFile} {
		keys, err := keyutil.PublicKeysFromFile(file)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, keys...)
	}
	stock, err := serviceaccount.StaticPublicKeysGetter(files)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"", keyID(t, s.key), keyID(t, s.oldKey), "unknown"} {
		want, got := stock.GetPublicKeys(t.Context(), id), ours.GetPublicKeys(t.Context(), id)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("GetPublicKeys(%q) differs from stock (-stock +ours):\n%s", id, diff)
		}
	}
	if got, want := ours.GetCacheAgeMaxSeconds(), stock.GetCacheAgeMaxSeconds(); got != want {
		t.Errorf("GetCacheAgeMaxSeconds() = %d, want %d", got, want)
	}
	if got := documents(t, ours); got != documents(t, stock) {
		t.Errorf("the discovery documents are\n%s, want\n%s", got, documents(t, stock))
	}
}

// documents are upstream's documents of keys.
func documents(t testing.TB, keys serviceaccount.PublicKeysGetter) string {
	t.Helper()
	provider, err := serviceaccount.NewOpenIDMetadataProvider(issuer, "", "gateway:6443", keys)
	if err != nil {
		t.Fatalf("NewOpenIDMetadataProvider() = %v, want no error", err)
	}
	config, configAge := provider.GetConfigJSON()
	set, setAge := provider.GetKeysetJSON()
	return fmt.Sprintf("%s %d\n%s %d", config, configAge, set, setAge)
}

// TestOpenIDMetadata has the documents asked for before the service is there, then
// with it, and then after a rotation.
func TestOpenIDMetadata(t *testing.T) {
	first, second := authntest.NewRSAKey(t), authntest.NewRSAKey(t)
	answers := make(chan *authnv1.ListPublicKeysResponse, 1)
	var answer *authnv1.ListPublicKeysResponse
	_, conn := serveStub(t, &stub{keys: func() (*authnv1.ListPublicKeysResponse, error) {
		select {
		case answer = <-answers:
		default:
		}
		if answer == nil {
			return nil, rpcerr.NotSynced("authn", "keys")
		}
		return answer, nil
	}})
	keys := client.NewPublicKeys(conn)
	metadata, err := client.NewOpenIDMetadata(issuer, "", "gateway:6443", keys)
	if err != nil {
		t.Fatalf("NewOpenIDMetadata() = %v, want no error", err)
	}
	container := restful.NewContainer()
	metadata.Install(container)
	get := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		container.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w
	}
	paths := []string{serviceaccount.OpenIDConfigPath, serviceaccount.JWKSPath}
	for _, path := range paths {
		if w := get(path); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" || !json.Valid(w.Body.Bytes()) {
			t.Errorf("GET %s = %d %v %s without keys, want 503 with Retry-After", path, w.Code, w.Header(), w.Body)
		}
	}

	run(t, keys)
	answers <- listOf(t, first)
	servetest.Eventually(t, fetched(keys))
	if w := get(serviceaccount.OpenIDConfigPath); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"issuer":"`+issuer+`"`) || !strings.Contains(w.Body.String(), `"jwks_uri":"https://gateway:6443/openid/v1/jwks"`) {
		t.Errorf("GET %s = %d %s, want the issuer's configuration", serviceaccount.OpenIDConfigPath, w.Code, w.Body)
	}
	if w := get(serviceaccount.JWKSPath); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), keyID(t, first)) ||
		w.Header().Get("Cache-Control") != "public, max-age=3600" || w.Header().Get("Content-Type") != "application/jwk-set+json" {
		t.Errorf("GET %s = %d %v %s, want the first key", serviceaccount.JWKSPath, w.Code, w.Header(), w.Body)
	}

	answers <- listOf(t, first, second)
	servetest.Eventually(t, func() error {
		if body := get(serviceaccount.JWKSPath).Body.String(); !strings.Contains(body, keyID(t, first)) || !strings.Contains(body, keyID(t, second)) {
			return fmt.Errorf("the documents are %s, want both keys", body)
		}
		return nil
	})
}

func listOf(t testing.TB, keys ...authntest.Key) *authnv1.ListPublicKeysResponse {
	t.Helper()
	s := newSetup(t)
	s.key, s.oldKey = keys[0], keys[len(keys)-1]
	svc := newService(t, s)
	answer, err := authnv1.NewAuthenticationServiceClient(svc.connect(t)).ListPublicKeys(t.Context(), &authnv1.ListPublicKeysRequest{})
	if err != nil {
		t.Fatalf("ListPublicKeys() = %v, want no error", err)
	}
	return answer
}

// TestOpenIDMetadataRefusals holds the errors to upstream's.
func TestOpenIDMetadataRefusals(t *testing.T) {
	for _, bad := range []struct{ issuer, jwksURI, external string }{
		{"", "", "gateway:6443"},
		{"http://issuer.example.com", "", "gateway:6443"},
		{issuer, "", ""},
		{issuer, "http://keys.example.com", ""},
	} {
		keys, err := serviceaccount.StaticPublicKeysGetter([]any{authntest.NewRSAKey(t).Private.Public()})
		if err != nil {
			t.Fatal(err)
		}
		_, want := serviceaccount.NewOpenIDMetadataProvider(bad.issuer, bad.jwksURI, bad.external, keys)
		_, got := client.NewOpenIDMetadata(bad.issuer, bad.jwksURI, bad.external, client.NewPublicKeys(refusing{t}))
		if want == nil || got == nil || got.Error() != want.Error() {
			t.Errorf("NewOpenIDMetadata(%+v) = %v, want %v", bad, got, want)
		}
	}
}

func TestPublicKeysOutage(t *testing.T) {
	s := newSetup(t)
	svc := newService(t, s)
	keys := client.NewPublicKeys(svc.connect(t))
	run(t, keys)
	servetest.Eventually(t, fetched(keys))
	if err := svc.Stop(); err != nil {
		t.Fatalf("Stop() = %v", err)
	}
	if got := keys.GetPublicKeys(t.Context(), ""); len(got) != 2 {
		t.Errorf("GetPublicKeys() = %v without the service, want the last keys", got)
	}
}
