package framework

import (
	"regexp"
	"strings"
	"testing"
)

// Kubectl is Cluster.Kubectl with an outcome that is compared: exit code and all
// that was printed, but for the widths of columns, ages and generated names.
func (s *Transcript) Kubectl(tb testing.TB, args ...string) Result {
	tb.Helper()
	return s.KubectlInput(tb, "", args...)
}

// KubectlInput is Kubectl with an input, for `-f -`.
func (s *Transcript) KubectlInput(tb testing.TB, stdin string, args ...string) Result {
	tb.Helper()
	result := s.cluster.KubectlInput(tb, stdin, args...)
	s.SayKubectl(result, args...)
	return result
}

// SayKubectl adds the outcome of a kubectl that was run without the transcript, for
// example the last of those that were run until something came true.
func (s *Transcript) SayKubectl(result Result, args ...string) {
	e := entry{
		Request: "kubectl " + strings.Join(args, " "),
		Code:    result.Code,
		Body:    map[string]any{"stdout": printed(result.Stdout), "stderr": printed(result.Stderr)},
	}
	s.entries = append(s.entries, e)
}

// varyingPrinted are texts that differ in what kubectl prints.
var varyingPrinted = []struct {
	pattern     *regexp.Regexp
	replacement string
}{
	{regexp.MustCompile(` +(\n|$)`), "$1"},
	{regexp.MustCompile(` {2,}`), "  "},
	// The age of an object, a column or the end of a line.
	{regexp.MustCompile(`(?m)  (\d+[smh])+( ago)?(  |$)`), "  AGE$2$3"},
	{regexp.MustCompile(`(?m)  <(unknown|invalid)>$`), "  AGE"},
	{regexp.MustCompile(`\b10\.96\.\d+\.\d+\b`), "SERVICE-IP"},
	{regexp.MustCompile(`(resourceVersion\\*"?: ?\\*"?)\d+`), "${1}VARIES"},
	{regexp.MustCompile(`\beyJ[\w-]+\.[\w-]+\.[\w-]+`), "TOKEN"},
	// A Pod's name ends with its template's hash and five letters of rand.String.
	{regexp.MustCompile(`\b([a-z0-9-]+-[a-z0-9]{8,10})-[bcdfghjklmnpqrstvwxz2456789]{5}\b`), "$1-SUFFIX"},
	{regexp.MustCompile(`\b[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}`), "TIME"},
	{regexp.MustCompile(`\S+/(LIVE|MERGED)-\d+`), "/tmp/$1"},
	{regexp.MustCompile(`:3\d{4}/`), ":NODE-PORT/"},
	{regexp.MustCompile(`targetPort: \d{5}`), "targetPort: PORT"},
	{regexp.MustCompile(`("gitCommit": )"\w+"`), "$1 VARIES"},
	// The head of a line of klog, from kubectl itself.
	{regexp.MustCompile(`(?m)^([IWE])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ `), "$1 "},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? [+-]\d{4}`), "TIME"},
}

// printed is what kubectl printed without what differs.
func printed(text string) string {
	for _, v := range varyingPrinted {
		text = v.pattern.ReplaceAllString(text, v.replacement)
	}
	return text
}
