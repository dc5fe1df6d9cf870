package app

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
)

// terminal returns a pseudo-terminal, and a function that closes it and returns what
// was written to it.
func terminal(t *testing.T) (*os.File, func() string) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan string)
	go func() {
		var out bytes.Buffer
		// The last reader's end is an EIO.
		if _, err := io.Copy(&out, master); err != nil && !errors.Is(err, syscall.EIO) {
			out.WriteString(err.Error())
		}
		read <- out.String()
	}()
	return tty, func() string {
		if err := tty.Close(); err != nil {
			t.Error(err)
		}
		text := <-read
		if err := master.Close(); err != nil {
			t.Error(err)
		}
		return strings.ReplaceAll(text, "\r\n", "\n")
	}
}

// TestColours wants colours on a terminal, and nowhere else.
func TestColours(t *testing.T) {
	s := newServer(t)
	answer(t, s, pathExplain, func(*authzv1.ExplainRequest) (proto.Message, error) {
		return &authzv1.ExplainResponse{Answer: said(authzv1.Decision_DECISION_DENY), DecidedBy: "\x1b[31mred"}, nil
	})
	new(admitting).add(t, s)
	answerWhoCan(t, s, subjects(3), nil)
	for name, tc := range map[string]struct {
		env  map[string]string
		args []string
		in   string
		want string
		none bool
	}{
		"explain": {
			args: []string{"explain", "get", "/healthz"},
			want: "\x1b[31mno: \x1b[0m\x1b[1mcaller may not get /healthz\x1b[0m\n\n  ^[[31mred\n",
		},
		"a diff":        {args: []string{"admit", "-f", "-"}, in: pod("shell"), want: "\x1b[32m+  labels:\x1b[0m\n"},
		"progress":      {args: []string{"who-can", "get", "/healthz", "-o", "json", "--chunk-size=2"}, want: "\r2 so far ...\r{\n"},
		"no colours":    {env: map[string]string{"NO_COLOR": ""}, args: []string{"explain", "get", "/healthz"}, none: true},
		"a dumb one":    {env: map[string]string{"TERM": "dumb"}, args: []string{"explain", "get", "/healthz"}, none: true},
		"for a machine": {args: []string{"explain", "get", "/healthz", "-o", "yaml"}, none: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TERM", "xterm")
			t.Setenv("NO_COLOR", "")
			if err := os.Unsetenv("NO_COLOR"); err != nil {
				t.Fatal(err)
			}
			for key, value := range tc.env {
				t.Setenv(key, value)
			}
			tty, done := terminal(t)
			Main(append(tc.args, "--kubeconfig="+s.kubeconfig), strings.NewReader(tc.in), tty, tty)
			if got := done(); !strings.Contains(got, tc.want) || tc.none && strings.Contains(got, "\x1b") {
				t.Errorf("%v printed on a terminal:\n%q\nwant %q in it", tc.args, got, tc.want)
			}
			if got := s.run(t, tc.in, tc.args...); strings.Contains(got.out+got.err, "\x1b") || strings.Contains(got.err, "so far") {
				t.Errorf("%v printed in a pipe:\n%q\n%q", tc.args, got.out, got.err)
			}
		})
	}
}
