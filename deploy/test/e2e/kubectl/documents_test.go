package kubectl

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trigate/trigate/deploy/test/framework"
)

// TestPathsAreListed compares the answer to GET /. Trigate has all of stock's paths,
// and those of its gates and of their health checks.
func TestPathsAreListed(t *testing.T) {
	paths := map[string][]string{}
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		var got struct{ Paths []string }
		c.Admin(t).Send(t, http.MethodGet, "/", "").Want(t, http.StatusOK).Decode(t, &got)
		if !slices.IsSorted(got.Paths) {
			t.Errorf("paths are not sorted: %q", got.Paths)
		}
		paths[c.Name] = got.Paths
	})
	stock, trigate := paths[framework.Stock], paths[framework.Trigate]
	if stock == nil || trigate == nil {
		return // one of them was not asked for, by go test -run
	}
	trigate = slices.DeleteFunc(slices.Clone(trigate), func(path string) bool {
		own := []string{"/gates/", "/healthz/", "/livez/", "/readyz/"}
		isOwn := slices.ContainsFunc(own, func(prefix string) bool { return strings.HasPrefix(path, prefix) })
		return isOwn && !slices.Contains(stock, path)
	})
	if diff := cmp.Diff(stock, trigate); diff != "" {
		t.Errorf("paths (-%s +%s):\n%s", framework.Stock, framework.Trigate, diff)
	}
}

// TestDiscovery compares the discovery documents, each by itself and aggregated.
func TestDiscovery(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		admin := transcript.Admin(t)
		var legacy struct{ Versions []string }
		admin.Send(t, http.MethodGet, "/api", "").Want(t, http.StatusOK).Decode(t, &legacy)
		for _, version := range legacy.Versions {
			admin.Send(t, http.MethodGet, "/api/"+version, "").Want(t, http.StatusOK)
		}
		var list struct {
			Groups []struct {
				Name     string
				Versions []struct{ GroupVersion string }
			}
		}
		admin.Send(t, http.MethodGet, "/apis", "").Want(t, http.StatusOK).Decode(t, &list)
		if len(list.Groups) < 20 {
			t.Errorf("there are %d groups, want all that are served by default", len(list.Groups))
		}
		for _, group := range list.Groups {
			admin.Send(t, http.MethodGet, "/apis/"+group.Name, "").Want(t, http.StatusOK)
			for _, version := range group.Versions {
				admin.Send(t, http.MethodGet, "/apis/"+version.GroupVersion, "").Want(t, http.StatusOK)
			}
		}
		for _, root := range []string{"/api", "/apis"} {
			for _, version := range []string{"v2", "v2beta1"} {
				admin.Send(t, http.MethodGet, root, "",
					accept("application/json;g=apidiscovery.k8s.io;v="+version+";as=APIGroupDiscoveryList,application/json"))
			}
			// Twice the same entity tag is not sent twice.
			answer := admin.Send(t, http.MethodGet, root, "",
				accept("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")).Want(t, http.StatusOK)
			admin.Send(t, http.MethodGet, root, "",
				accept("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"),
				framework.Header("If-None-Match", answer.Header.Get("Etag"))).Want(t, http.StatusNotModified)
		}
	})
}

// TestOpenAPI compares the OpenAPI documents of both versions.
func TestOpenAPI(t *testing.T) {
	documents := map[string]map[string][]byte{}
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		got := map[string][]byte{}
		documents[c.Name] = got
		admin := c.Admin(t)
		get := func(path string) *framework.Answer {
			answer := admin.Send(t, http.MethodGet, path, "").Want(t, http.StatusOK)
			got[path] = answer.Body
			return answer
		}
		get("/openapi/v2")
		var root struct {
			Paths map[string]struct{ ServerRelativeURL string }
		}
		get("/openapi/v3").Decode(t, &root)
		for _, want := range []string{"api/v1", "apis/apps/v1", "apis/apiextensions.k8s.io/v1", "apis/apiregistration.k8s.io/v1", "version"} {
			if root.Paths[want].ServerRelativeURL == "" {
				t.Errorf("/openapi/v3 has no %s", want)
			}
		}
		for _, document := range root.Paths {
			get(document.ServerRelativeURL)
		}
	})
	stock, trigate := documents[framework.Stock], documents[framework.Trigate]
	if stock == nil || trigate == nil {
		return // one of them was not asked for, by go test -run
	}
	for path, want := range stock {
		var wanted, got any
		if err := json.Unmarshal(want, &wanted); err != nil {
			t.Fatalf("%s of %s: %v", path, framework.Stock, err)
		}
		// The paths end with a hash of the document, so a missing one may be a different one.
		if trigate[path] == nil {
			t.Errorf("%s has no %s", framework.Trigate, path)
			continue
		}
		if err := json.Unmarshal(trigate[path], &got); err != nil {
			t.Fatalf("%s of %s: %v", path, framework.Trigate, err)
		}
		if diff := cmp.Diff(wanted, got); diff != "" {
			t.Errorf("%s differs (-%s +%s):\n%s", path, framework.Stock, framework.Trigate, diff)
		}
	}
	for path := range trigate {
		if stock[path] == nil {
			t.Errorf("%s has no %s", framework.Stock, path)
		}
	}
}

// TestHealthAndVersion compares how the server is and which it is, as an administrator,
// an ordinary user and a stranger see it. What audit says of the reason is not
// compared: Trigate answers these paths without its gates.
func TestHealthAndVersion(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		for _, who := range callers(c.Admin(t), c.As(t, c.User(t, "jane", "dev")), c.As(t, c.Anonymous(t))) {
			for _, path := range []string{
				"/version", "/version/", "/healthz", "/livez", "/readyz", "/healthz?exclude=etcd",
				"/livez/ping", "/readyz/etcd", "/readyz/no-such-check",
			} {
				answer := who.Send(t, http.MethodGet, path, "")
				body := regexp.MustCompile(`"gitCommit": "\w+"`).ReplaceAllString(string(answer.Body), "")
				transcript.Say(who.name+" asks for "+path, map[string]any{
					"code": answer.Code, "body": body, "type": answer.Header.Get("Content-Type"),
				})
			}
		}
	})
}

// TestOtherPaths compares what is outside of the API groups, or not there at all.
func TestOtherPaths(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		admin := transcript.Admin(t)
		for _, who := range callers(admin, transcript.As(t, c.User(t, "jane", "dev")), transcript.As(t, c.Anonymous(t))) {
			for _, path := range []string{
				"/no-such-path", "/api", "/api/v2", "/apis", "/apis/no.such.group", "/apis/apps/v9", "/openapi/v3/no.such.group",
				"/api/v1/gizmos", "/api/v1/namespaces/default/pods/a/b/c", "/.well-known/no-such-document",
			} {
				who.Send(t, http.MethodGet, path, "")
			}
			who.Send(t, http.MethodPost, "/healthz", "")
			who.Send(t, http.MethodDelete, "/version", "")
			who.Send(t, http.MethodPut, "/api/v1/namespaces", "{}")
			who.Send(t, http.MethodDelete, "/apis/apps/v1", "")
		}
		namespaces := "/api/v1/namespaces"
		admin.Send(t, http.MethodGet, namespaces, "", accept("application/x-unknown")).Want(t, http.StatusNotAcceptable)
		admin.Send(t, http.MethodPost, namespaces, "a", framework.ContentType("application/x-unknown")).Want(t, http.StatusUnsupportedMediaType)

		configMaps := namespaces + "/" + transcript.Namespace(t) + "/configmaps?dryRun=All&fieldValidation="
		const doubtful = `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": "b", "a": "c"}, "colour": "blue"}`
		json := framework.ContentType("application/json")
		admin.Send(t, http.MethodPost, configMaps+"Strict", doubtful, json).WantMessage(t, http.StatusBadRequest,
			`ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: duplicate field "data.a", unknown field "colour"`)
		admin.Send(t, http.MethodPost, configMaps+"Warn", doubtful, json).
			Want(t, http.StatusCreated).WantWarnings(t, `duplicate field \"data.a\"`, `unknown field \"colour\"`)
		admin.Send(t, http.MethodPost, configMaps+"Ignore", doubtful, json).Want(t, http.StatusCreated).WantWarnings(t)
		admin.Send(t, http.MethodPost, configMaps+"Sometimes", doubtful, json).Want(t, http.StatusUnprocessableEntity)
	})
}

// caller is a caller with a name.
type caller struct {
	*framework.Caller
	name string
}

func callers(admin, user, stranger *framework.Caller) []caller {
	return []caller{{admin, "administrator"}, {user, "user"}, {stranger, "stranger"}}
}

// TestMetricsAndDebugging asks for what only operators read, whose content differs.
func TestMetricsAndDebugging(t *testing.T) {
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		admin, jane := c.Admin(t), c.As(t, c.User(t, "jane"))
		for path, want := range map[string]string{
			"/metrics":        "apiserver_request_total{",
			"/metrics/slis":   "kubernetes_healthcheck{",
			"/readyz?verbose": "[+]etcd ok",
			"/livez?verbose":  "livez check passed",
			"/debug/pprof/":   "goroutine",
			"/debug/api_priority_and_fairness/dump_priority_levels": "workload-low",
			"/statusz": "apiserver statusz",
			"/flagz":   "apiserver flagz",
		} {
			answer := admin.Send(t, http.MethodGet, path, "", accept("text/plain")).Want(t, http.StatusOK)
			if !strings.Contains(string(answer.Body), want) {
				t.Errorf("%s: %q is missing", path, want)
			}
			// Everybody may see how the server is.
			wantCode := http.StatusForbidden
			if strings.HasSuffix(path, "?verbose") {
				wantCode = http.StatusOK
			}
			jane.Send(t, http.MethodGet, path, "", accept("text/plain")).Want(t, wantCode)
		}
	})
}

// accept asks for a type of answer.
func accept(value string) framework.RequestOption {
	return func(req *http.Request) { req.Header.Set("Accept", value) }
}
