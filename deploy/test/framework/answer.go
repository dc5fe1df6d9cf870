package framework

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// Caller sends plain HTTP requests as one user, so that a test sees all of an
// answer: client-go hides codes, headers and bodies, and would not send some of the
// requests that others do.
type Caller struct {
	cluster    *Cluster
	client     *http.Client
	url        string
	transcript *Transcript // nil if answers are not to be compared
}

// As returns a caller with the credentials of config.
func (c *Cluster) As(tb testing.TB, config *rest.Config) *Caller {
	tb.Helper()
	return &Caller{cluster: c, client: HTTP(tb, config), url: strings.TrimSuffix(config.Host, "/")}
}

// Admin returns a caller who is a member of system:masters.
func (c *Cluster) Admin(tb testing.TB) *Caller {
	tb.Helper()
	return c.As(tb, c.Config(tb))
}

// RequestOption changes a request before it is sent.
type RequestOption func(*http.Request)

// Header adds a header. Unlike http.Header.Add it keeps the bytes of name and value
// as they are.
func Header(name, value string) RequestOption {
	return func(req *http.Request) { req.Header[name] = append(req.Header[name], value) }
}

// ContentType says what the body is, which then goes out as it is.
func ContentType(value string) RequestOption {
	return func(req *http.Request) { req.Header.Set("Content-Type", value) }
}

// Query adds to the request's query.
func Query(query string) RequestOption {
	return func(req *http.Request) {
		if req.URL.RawQuery != "" {
			query = "&" + query
		}
		req.URL.RawQuery += query
	}
}

// The types of patches.
var (
	MergePatch     = ContentType(string(types.MergePatchType))
	StrategicPatch = ContentType(string(types.StrategicMergePatchType))
	JSONPatchType  = ContentType(string(types.JSONPatchType))
)

// ServerSideApply makes a PATCH an apply. Like other bodies its own goes out as JSON.
func ServerSideApply(req *http.Request) {
	req.Header.Set("Content-Type", string(types.ApplyYAMLPatchType))
}

// Answer is what the API said to one request.
type Answer struct {
	// Request is its method and path.
	Request string
	// Code is the HTTP status.
	Code int
	// Header are all headers.
	Header http.Header
	// Body is the body as it came.
	Body []byte
	// Audit is the request's audit event, nil if there is none, as for requests that
	// end before audit looks at them.
	Audit *auditv1.Event
}

// Send sends a request and returns the answer, whatever it is. The path may have a
// query, and keeps its percent-encoding. The body is written as YAML and goes out as
// JSON, unless an option says what it is.
func (u *Caller) Send(tb testing.TB, method, path, body string, options ...RequestOption) *Answer {
	tb.Helper()
	answer, err := u.TrySend(method, path, body, options...)
	if err != nil {
		tb.Fatalf("%s: %v", u.cluster.Name, err)
	}
	if u.transcript != nil {
		u.transcript.add(answer)
	}
	return answer
}

// TrySend is Send that returns an error if no answer came. It may be called on any
// goroutine, and its answers are not compared.
func (u *Caller) TrySend(method, path, body string, options ...RequestOption) (*Answer, error) {
	req, err := http.NewRequest(method, u.url+path, nil)
	if err != nil {
		return nil, fmt.Errorf("making the request %s %s: %w", method, path, err)
	}
	req.Header.Set("Accept", "application/json")
	id := uuid.NewString()
	req.Header.Set("Audit-ID", id)
	for _, option := range options {
		option(req)
	}
	if err := setBody(req, body); err != nil {
		return nil, fmt.Errorf("the body of %s %s: %w", method, path, err)
	}
	before, err := fileSize(u.cluster.AuditLog)
	if err != nil {
		return nil, err
	}
	resp, err := u.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	content, err := io.ReadAll(resp.Body)
	if err := firstError(err, resp.Body.Close()); err != nil {
		return nil, fmt.Errorf("reading the answer to %s %s: %w", method, path, err)
	}
	answer := &Answer{Request: method + " " + req.URL.RequestURI(), Code: resp.StatusCode, Header: resp.Header, Body: content}
	if resp.Header.Get("Audit-Id") != id {
		return answer, nil
	}
	err = poll(req.Context(), Timeout, func() error {
		answer.Audit, err = u.cluster.auditEvent(id, before)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("the audit event of %s %s: %w", method, path, err)
	}
	return answer, nil
}

// Make creates an object that the administrator deletes in the end of the test,
// unless it is gone by then.
func (u *Caller) Make(tb testing.TB, collection, name, object string) *Answer {
	tb.Helper()
	answer := u.Send(tb, http.MethodPost, collection, object).Want(tb, http.StatusCreated)
	tb.Cleanup(func() {
		deleted := u.cluster.Admin(tb).Send(tb, http.MethodDelete, collection+"/"+name, "")
		if deleted.Code != http.StatusOK && deleted.Code != http.StatusNotFound {
			tb.Errorf("%s: cleaning up: got code %d", deleted.Request, deleted.Code)
		}
	})
	return answer
}

// Await sends a request, which must not change anything, until the answer has a code:
// gates learn of objects by and by. The answers are not compared.
func (u *Caller) Await(tb testing.TB, method, path, body string, code int, options ...RequestOption) {
	tb.Helper()
	Eventually(tb, fmt.Sprintf("code %d for %s %s", code, method, path), func() error {
		answer, err := u.TrySend(method, path, body, options...)
		if err == nil && answer.Code != code {
			err = fmt.Errorf("got code %d: %s", answer.Code, shortened(answer.Body))
		}
		return err
	})
}

// setBody gives a request its body.
func setBody(req *http.Request, body string) error {
	content := []byte(body)
	switch {
	case body == "":
		return nil
	case req.Header.Get("Content-Type") == "":
		req.Header.Set("Content-Type", "application/json")
		fallthrough
	case req.Header.Get("Content-Type") == string(types.ApplyYAMLPatchType):
		// An audit event cannot hold a patch that is YAML.
		var err error
		if content, err = yaml.YAMLToJSON(content); err != nil {
			return err
		}
	}
	req.Body = io.NopCloser(bytes.NewReader(content))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
	req.ContentLength = int64(len(content))
	return nil
}

// Want fails the test if the answer has another code.
func (a *Answer) Want(tb testing.TB, code int) *Answer {
	tb.Helper()
	if a.Code != code {
		tb.Fatalf("%s: got code %d, want %d; the answer was:\n%s", a.Request, a.Code, code, shortened(a.Body))
	}
	return a
}

// WantMessage fails the test if the answer is not a Status with this code and
// message.
func (a *Answer) WantMessage(tb testing.TB, code int, message string) *Answer {
	tb.Helper()
	a.Want(tb, code)
	if got := a.String(tb, "message"); got != message {
		tb.Errorf("%s: got message\n%s\nwant\n%s", a.Request, got, message)
	}
	return a
}

// WantWarnings fails the test if the texts of the answer's Warning headers are
// others.
func (a *Answer) WantWarnings(tb testing.TB, texts ...string) *Answer {
	tb.Helper()
	want := []string{}
	for _, text := range texts {
		want = append(want, `299 - "`+text+`"`)
	}
	got := a.Header.Values("Warning")
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		tb.Errorf("%s: got warnings\n%s\nwant\n%s", a.Request, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	return a
}

// WantAnnotation fails the test if the request's audit event lacks the annotation or
// has another value for it.
func (a *Answer) WantAnnotation(tb testing.TB, key, value string) *Answer {
	tb.Helper()
	if a.Audit == nil {
		tb.Fatalf("%s: there is no audit event", a.Request)
	}
	if got, ok := a.Audit.Annotations[key]; !ok || got != value {
		tb.Errorf("%s: audit annotation %s: got %q (%v), want %q", a.Request, key, got, ok, value)
	}
	return a
}

// Decode reads the body as JSON.
func (a *Answer) Decode(tb testing.TB, into any) {
	tb.Helper()
	if err := a.Into(into); err != nil {
		tb.Fatal(err)
	}
}

// Into is Decode that returns an error.
func (a *Answer) Into(into any) error {
	if err := decodeJSON(a.Body, into); err != nil {
		return fmt.Errorf("%s: reading the answer: %w; it was:\n%s", a.Request, err, shortened(a.Body))
	}
	return nil
}

// Field returns what the answer has at the end of path, a list of keys, or of
// indexes in lists; nil if it is not there. Numbers are json.Number.
func (a *Answer) Field(tb testing.TB, path ...any) any {
	tb.Helper()
	var value any
	a.Decode(tb, &value)
	for _, step := range path {
		switch step := step.(type) {
		case string:
			fields, _ := value.(map[string]any)
			value = fields[step]
		case int:
			items, _ := value.([]any)
			if step >= len(items) {
				return nil
			}
			value = items[step]
		default:
			tb.Fatalf("a step of a path is a key or an index, not %T", step)
		}
	}
	return value
}

// String returns the text at the end of path, empty if there is none.
func (a *Answer) String(tb testing.TB, path ...any) string {
	tb.Helper()
	text, _ := a.Field(tb, path...).(string)
	return text
}

// auditEvent returns the audit event of a request that is over. It looks at the log
// from the given size on.
func (c *Cluster) auditEvent(id string, from int64) (*auditv1.Event, error) {
	file, err := os.Open(c.AuditLog)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(from, io.SeekStart); err != nil {
		return nil, err
	}
	content, err := io.ReadAll(file)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", c.AuditLog, err)
	}
	mark := []byte(`"auditID":"` + id + `"`)
	for line := range bytes.Lines(content) {
		if !bytes.Contains(line, mark) || !bytes.HasSuffix(line, []byte("\n")) {
			continue
		}
		var event auditv1.Event
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("reading %s: %w", c.AuditLog, err)
		}
		switch event.Stage {
		case auditv1.StageResponseComplete, auditv1.StagePanic:
			return &event, nil
		case auditv1.StageResponseStarted:
			// A caller who is unknown has no other event.
			if event.User.Username == "" {
				return &event, nil
			}
		}
	}
	return nil, fmt.Errorf("%s has no event %s", c.AuditLog, id)
}

func fileSize(path string) (int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// decodeJSON keeps the digits of numbers.
func decodeJSON(content []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber()
	return decoder.Decode(into)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// shortened is content for a message.
func shortened(content []byte) string {
	const limit = 4 << 10
	if len(content) <= limit {
		return string(content)
	}
	return fmt.Sprintf("%s… (%d bytes)", content[:limit], len(content))
}
