package readme

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	got, err := parse(strings.Join([]string{
		"# X", "## One", "```console", "$ a b # why", "out", "more", "$ c \\", "  d", "```", "## Two", "```yaml", "k: v", "```", "```", "drawing", "```", "```console", "$ e", "```",
	}, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []command{
		{section: "One", line: 4, text: "a b # why", output: "out\nmore\n"},
		{section: "One", line: 7, text: "c \\\n  d"},
		{section: "Two", line: 18, text: "e"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(command{})); diff != "" {
		t.Errorf("parse() (-want +got):\n%s", diff)
	}
	if words := got[0].words(); len(words) != 2 {
		t.Errorf("words() = %q, want them without the comment", words)
	}
	for name, text := range map[string]string{
		"a command elsewhere": "```sh\n$ a\n```",
		"no command":          "```console\nout\n```",
		"no end":              "```console\n$ a",
	} {
		if _, err := parse(text); err == nil {
			t.Errorf("%s: parse() = nil, want an error", name)
		}
	}
}

func TestShows(t *testing.T) {
	c := command{output: "a (b): … end\nnext\n"}
	for output, want := range map[string]bool{
		"a (b): x y end\nnext": true, "a (b): \n end\nnext \n": true, "a (b): end\nnext": false, "a (b): x end\nnext\nmore": false, "": false,
	} {
		if got := c.shows(output); got != want {
			t.Errorf("shows(%q) = %t, want %t", output, got, want)
		}
	}
}
