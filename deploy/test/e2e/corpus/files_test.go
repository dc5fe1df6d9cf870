package corpus

import (
	"embed"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// The files of the corpus: testdata/SERVERS/TOPIC.yaml, where SERVERS is how the
// control planes are started that the requests go to.
//
//go:embed testdata
var testdata embed.FS

// The ways in which control planes are started.
const (
	byDefault  = "default"    // the plugins that are on by default, and NodeRestriction
	optional   = "optional"   // those that are off by default too, with configuration files
	alwaysDeny = "alwaysdeny" // AlwaysDeny, over the data of the former
)

// file is one file of the corpus.
type file struct {
	name string // topic.yaml

	// Alone is set if the file changes what others get, such as a default class, or has
	// webhooks. It then has the control planes to itself.
	Alone bool `json:"alone,omitempty"`
	// Namespaces are made before the first request.
	Namespaces []namespace `json:"namespaces,omitempty"`
	// Requests are sent one after the other.
	Requests []request `json:"requests"`
}

// namespace is a namespace that the requests of a file work in. It stays: the control
// planes end with the test.
type namespace struct {
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// request is one request of the corpus, and what has to come of it on either control
// plane. All else that they answer has to be the same.
type request struct {
	// Acts names the plugin that changes or refuses what is asked for here, Passes the
	// one that has a look and lets it pass, or is not concerned, where one could think
	// it were.
	Acts   string `json:"acts,omitempty"`
	Passes string `json:"passes,omitempty"`

	// Send is the request's method and path. Others than Send are not of the corpus:
	// Await is sent until the answer is as expected, since plugins learn of objects by
	// and by, and must change nothing; Prepare is sent once, for what controllers may
	// have changed by chance.
	Send    string `json:"send,omitempty"`
	Await   string `json:"await,omitempty"`
	Prepare string `json:"prepare,omitempty"`
	// Repeated has Send be sent until the answer is as expected, which alone is
	// compared.
	Repeated bool `json:"repeated,omitempty"`

	// As is the user and, after commas, its groups; the administrator if it is empty.
	As string `json:"as,omitempty"`
	// Patch is the type of a patch: merge, strategic, json or apply.
	Patch string `json:"patch,omitempty"`
	// Body is sent as JSON. In it $WEBHOOK is the URL of the test's webhook, $CA the
	// certificates to verify it with, and $UID_NAME the uid that was kept as NAME.
	Body json.RawMessage `json:"body,omitempty"`

	// Code is the answer's code, and Says a part of its body.
	Code int    `json:"code"`
	Says string `json:"says,omitempty"`
	// Keep is a name for the uid of the object that is answered.
	Keep string `json:"keep,omitempty"`
}

// load reads the files for the control planes that are started in one of the ways.
func load(tb testing.TB, servers string) []file {
	tb.Helper()
	dir := path.Join("testdata", servers)
	entries, err := testdata.ReadDir(dir)
	if err != nil {
		tb.Fatal(err)
	}
	var files []file
	for _, entry := range entries {
		content, err := testdata.ReadFile(path.Join(dir, entry.Name()))
		if err != nil {
			tb.Fatal(err)
		}
		f := file{name: entry.Name()}
		if err := yaml.UnmarshalStrict(content, &f); err != nil {
			tb.Fatalf("%s/%s: %v", dir, entry.Name(), err)
		}
		for i, r := range f.Requests {
			if err := r.check(); err != nil {
				tb.Fatalf("%s/%s: request %d: %v", dir, entry.Name(), i, err)
			}
		}
		files = append(files, f)
	}
	return files
}

// check tells what a request lacks.
func (r request) check() error {
	method, target := r.line()
	switch {
	case !slices.Contains([]string{"GET", "POST", "PUT", "PATCH", "DELETE"}, method) || !strings.HasPrefix(target, "/"):
		return fmt.Errorf("%q is no method and path", method+" "+target)
	case (method == "PATCH") != (r.Patch != ""):
		return fmt.Errorf("%s %s: a patch, and nothing else, has a type", method, target)
	case r.Code == 0:
		return fmt.Errorf("%s %s: the code is missing", method, target)
	case r.Send == "" && (r.Acts != "" || r.Passes != ""):
		return fmt.Errorf("%s %s: it is not compared, so it shows nothing of a plugin", method, target)
	case r.Await != "" && method != "GET" && !strings.Contains(target, "dryRun=All"):
		return fmt.Errorf("%s %s: it is sent until it succeeds, so it has to be dry", method, target)
	}
	return nil
}

// line is the method and the path.
func (r request) line() (method, target string) {
	method, target, _ = strings.Cut(r.Send+r.Await+r.Prepare, " ")
	return method, target
}

// operation is what admission calls the request, and for a patch its type.
func (r request) operation() string {
	method, _ := r.line()
	resource, name, subresource := r.resource()
	switch {
	case slices.Contains([]string{"exec", "attach", "portforward", "proxy"}, subresource):
		return "connect"
	case method == "POST":
		return "create"
	case method == "PUT":
		return "update"
	case method == "PATCH":
		return "patch " + r.Patch
	case method == "DELETE" && resource != "" && name == "":
		return "deletecollection"
	case method == "DELETE":
		return "delete"
	default:
		return "read"
	}
}

// resource are the parts of the path.
func (r request) resource() (resource, name, subresource string) {
	_, target := r.line()
	target, _, _ = strings.Cut(target, "?")
	parts := strings.Split(strings.TrimPrefix(target, "/"), "/")
	if parts[0] == "api" {
		parts = parts[min(2, len(parts)):]
	} else {
		parts = parts[min(3, len(parts)):]
	}
	if len(parts) > 2 && parts[0] == "namespaces" && parts[2] != "status" && parts[2] != "finalize" {
		parts = parts[2:]
	}
	parts = append(parts, "", "", "")
	return parts[0], parts[1], parts[2]
}
