package framework

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
)

// Transcript holds what one control plane answered in the course of a test, without
// what has to differ from one to the other: uids, times, ports, generated names.
type Transcript struct {
	cluster *Cluster
	hidden  []string // pairs, for strings.NewReplacer
	entries []entry
}

// entry is an answer as it is compared.
type entry struct {
	Request  string
	Code     int
	Warnings []string
	Headers  map[string][]string
	Body     any
	Audit    any
}

// Compare runs test on both control planes like Both, and afterwards wants that they
// answered the same to the callers that the transcript made.
func Compare(t *testing.T, test func(t *testing.T, c *Cluster, transcript *Transcript)) {
	t.Helper()
	compare(t, test, func(test func(t *testing.T, c *Cluster)) { Both(t, test) })
}

// CompareThese is Compare for control planes that the test has started.
func CompareThese(t *testing.T, stock, trigate *Cluster, test func(t *testing.T, c *Cluster, transcript *Transcript)) {
	t.Helper()
	compare(t, test, func(test func(t *testing.T, c *Cluster)) {
		for _, c := range []*Cluster{stock, trigate} {
			t.Run(c.Name, func(t *testing.T) { test(t, c) })
		}
	})
}

func compare(t *testing.T, test func(t *testing.T, c *Cluster, transcript *Transcript), onEach func(func(t *testing.T, c *Cluster))) {
	t.Helper()
	transcripts := map[string]*Transcript{}
	onEach(func(t *testing.T, c *Cluster) {
		transcript := &Transcript{cluster: c}
		transcripts[c.Name] = transcript
		test(t, c, transcript)
	})
	stock, trigate := transcripts[Stock], transcripts[Trigate]
	if stock == nil || trigate == nil {
		return // one of them was not asked for, by go test -run
	}
	want, got := stock.normalised(t), trigate.normalised(t)
	for i := range min(len(want), len(got)) {
		compareLatency(want[i], got[i])
		if diff := cmp.Diff(want[i], got[i]); diff != "" {
			t.Errorf("answer %d, to %s, differs (-%s +%s):\n%s", i, want[i].Request, Stock, Trigate, diff)
		}
	}
	if len(want) != len(got) {
		t.Errorf("%s gave %d answers, %s %d", Stock, len(want), Trigate, len(got))
	}
}

// As returns a caller with the credentials of config whose answers are compared.
func (s *Transcript) As(tb testing.TB, config *rest.Config) *Caller {
	tb.Helper()
	caller := s.cluster.As(tb, config)
	caller.transcript = s
	return caller
}

// Admin returns a caller who is a member of system:masters and whose answers are
// compared.
func (s *Transcript) Admin(tb testing.TB) *Caller {
	tb.Helper()
	return s.As(tb, s.cluster.Config(tb))
}

// Namespace is Cluster.Namespace with a name that is not compared.
func (s *Transcript) Namespace(tb testing.TB) string {
	tb.Helper()
	return s.LabelledNamespace(tb, nil)
}

// LabelledNamespace is Cluster.LabelledNamespace with a name that is not compared.
func (s *Transcript) LabelledNamespace(tb testing.TB, labels map[string]string) string {
	tb.Helper()
	name := s.cluster.LabelledNamespace(tb, labels)
	s.Hide(name, "NAMESPACE")
	return name
}

// Hide has value, which may differ between control planes, compared as placeholder
// wherever it stands.
func (s *Transcript) Hide(value, placeholder string) {
	s.hidden = append(s.hidden, value, placeholder)
}

// Say adds anything else that is to be the same, such as what a webhook was sent.
// It is compared as JSON.
func (s *Transcript) Say(what string, value any) {
	s.entries = append(s.entries, entry{Request: what, Body: value})
}

func (s *Transcript) add(a *Answer) {
	e := entry{
		Request:  a.Request,
		Code:     a.Code,
		Warnings: a.Header.Values("Warning"),
		Headers:  map[string][]string{},
	}
	for _, name := range []string{"Content-Type", "Retry-After", "Www-Authenticate", "Allow", "Location"} {
		if values := a.Header.Values(name); values != nil {
			e.Headers[name] = values
		}
	}
	if decodeJSON(a.Body, &e.Body) != nil {
		e.Body = string(a.Body)
	}
	if a.Audit != nil {
		e.Audit = map[string]any{
			"annotations":      a.Audit.Annotations,
			"user":             a.Audit.User,
			"impersonatedUser": a.Audit.ImpersonatedUser,
			"objectRef":        a.Audit.ObjectRef,
			"responseStatus":   a.Audit.ResponseStatus,
			"verb":             a.Audit.Verb,
			"level":            a.Audit.Level,
			"stage":            a.Audit.Stage,
			"requestObject":    a.Audit.RequestObject,
			"responseObject":   a.Audit.ResponseObject,
		}
	}
	s.entries = append(s.entries, e)
}

// latencyPrefix is what the annotations begin with that only a request of more than
// half a second has. They say what it waited for.
const latencyPrefix = "apiserver.latency.k8s.io/"

// compareLatency leaves, of the annotations about what requests waited for, those on
// webhooks, and those only if both requests were slow enough to have any: the others
// hang on chance.
func compareLatency(want, got entry) {
	wantAnnotations, gotAnnotations := annotationsOf(want), annotationsOf(got)
	bothSlow := wantAnnotations[latencyPrefix+"total"] != nil && gotAnnotations[latencyPrefix+"total"] != nil
	for _, annotations := range []map[string]any{wantAnnotations, gotAnnotations} {
		for key := range annotations {
			if !strings.HasPrefix(key, latencyPrefix) {
				continue
			}
			if bothSlow && strings.HasSuffix(key, "-webhook") {
				annotations[key] = "VARIES"
			} else {
				delete(annotations, key)
			}
		}
	}
}

// annotationsOf are the annotations of a normalised entry's audit event.
func annotationsOf(e entry) map[string]any {
	event, _ := e.Audit.(map[string]any)
	annotations, _ := event["annotations"].(map[string]any)
	return annotations
}

// normalised are the entries without what may differ.
func (s *Transcript) normalised(tb testing.TB) []entry {
	tb.Helper()
	replacer := strings.NewReplacer(s.hidden...)
	text := func(value string) string {
		value = replacer.Replace(value)
		for _, v := range varying {
			value = v.pattern.ReplaceAllString(value, v.placeholder)
		}
		return value
	}
	plain := func(value any) any {
		content, err := json.Marshal(value)
		if err != nil {
			tb.Fatalf("an answer of %s: %v", s.cluster.Name, err)
		}
		var decoded any
		if err := decodeJSON(content, &decoded); err != nil {
			tb.Fatalf("an answer of %s: %v", s.cluster.Name, err)
		}
		return normalise(decoded, text)
	}
	var entries []entry
	for _, e := range s.entries {
		e.Request = text(e.Request)
		e.Warnings = slices.Clone(e.Warnings)
		for i := range e.Warnings {
			e.Warnings[i] = text(e.Warnings[i])
		}
		if raw, ok := e.Body.(string); ok {
			e.Body = text(raw) // as it came, also if it is no UTF-8
		} else {
			e.Body = plain(e.Body)
		}
		e.Audit = plain(e.Audit)
		entries = append(entries, e)
	}
	return entries
}

// varying are texts that differ wherever they stand.
var varying = []struct {
	pattern     *regexp.Regexp
	placeholder string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UUID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "127.0.0.1:PORT"},
	{regexp.MustCompile(`kube-api-access-[a-z0-9]{5}`), "kube-api-access-SUFFIX"},
	{regexp.MustCompile(`ResourceVersion in record \(\d+\)`), "ResourceVersion in record (VERSION)"},
	{regexp.MustCompile(`X509SHA256=[0-9a-f]{64}`), "X509SHA256=HASH"},
}

// varyingFields are fields whose values differ.
var varyingFields = []string{
	"resourceVersion", "caBundle", "token", "clusterIP", "clusterIPs",
	"authentication.kubernetes.io/credential-id",
}

// unorderedFields are lists in any order. managedFields are in that of their times,
// in which writes of the same second stand in any order; rules are in that in which
// the bindings lie in a map.
var unorderedFields = []string{"managedFields", "resourceRules", "nonResourceRules"}

// normalise returns decoded JSON without what may differ.
func normalise(value any, text func(string) string) any {
	switch value := value.(type) {
	case string:
		return text(value)
	case []any:
		for i := range value {
			value[i] = normalise(value[i], text)
		}
		return value
	case map[string]any:
		normal := map[string]any{}
		for key, field := range value {
			key = text(key)
			if slices.Contains(varyingFields, key) && field != "" {
				normal[key] = "VARIES"
				continue
			}
			normal[key] = normalise(field, text)
			if slices.Contains(unorderedFields, key) {
				sortByText(normal[key])
			}
		}
		return normal
	default:
		return value
	}
}

// sortByText gives a list an order of its own.
func sortByText(list any) {
	items, ok := list.([]any)
	if !ok {
		return
	}
	slices.SortFunc(items, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
}
