package process

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"
)

// newTestCommand returns the program under test. It is a process of its own:
// logs and feature gates are set once for each process.
func newTestCommand() *cobra.Command {
	var problems []string
	var wait bool
	return NewCommand(Config{
		Name: "trigate-test",
		Long: "Tests.",
		AddFlags: func(sections *cliflag.NamedFlagSets) {
			fs := sections.FlagSet("service")
			fs.StringArrayVar(&problems, "bad-thing", nil, "A problem to end with.")
			fs.BoolVar(&wait, "wait", false, "Run until a signal comes.")
		},
		Run: func(ctx context.Context) error {
			fmt.Println("running")
			if wait {
				<-ctx.Done()
				fmt.Println("ending")
			}
			var errs []error
			for _, problem := range problems {
				errs = append(errs, errors.New(problem))
			}
			return errors.Join(errs...)
		},
	})
}

func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), childVariable+"=yes")
	return cmd
}

func TestMainEndsWithOneLine(t *testing.T) {
	for name, tc := range map[string]struct {
		args       []string
		wantStdout string
		// wantStderr is the one line, without its end.
		wantStderr string
	}{
		"runs":                {wantStdout: "running\n"},
		"unknown flag":        {args: []string{"--nope"}, wantStderr: "trigate-test: unknown flag: --nope"},
		"argument":            {args: []string{"nope"}, wantStderr: `trigate-test: takes no arguments, but got "nope"`},
		"bad log format":      {args: []string{"--logging-format=xml"}, wantStderr: `trigate-test: --logging-format: format: Invalid value: "xml": Unsupported log format`},
		"unknown gate":        {args: []string{"--feature-gates=Nope=true"}, wantStderr: "trigate-test: --feature-gates: unrecognized feature gate: Nope"},
		"bad version":         {args: []string{"--emulated-version=0.1"}, wantStderr: "trigate-test: --emulated-version: emulation version 0.1 is not between"},
		"one problem":         {args: []string{"--bad-thing=--a: x"}, wantStdout: "running\n", wantStderr: "trigate-test: --a: x"},
		"problems":            {args: []string{"--bad-thing=--a: x", "--bad_thing=--b: y"}, wantStdout: "running\n", wantStderr: "trigate-test: --a: x; --b: y"},
		"a text of two lines": {args: []string{"--bad-thing=one:\n\n  two\n"}, wantStdout: "running\n", wantStderr: "trigate-test: one:; two"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := program(t, tc.args...)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			if cmd.ProcessState == nil {
				t.Fatalf("Run() = %v", err)
			}
			wantCode := 0
			if tc.wantStderr != "" {
				wantCode = 1
			}
			if got := cmd.ProcessState.ExitCode(); got != wantCode {
				t.Errorf("exit code = %d, want %d", got, wantCode)
			}
			if got := stdout.String(); got != tc.wantStdout {
				t.Errorf("stdout = %q, want %q", got, tc.wantStdout)
			}
			line, rest, _ := strings.Cut(stderr.String(), "\n")
			if !strings.HasPrefix(line, tc.wantStderr) || rest != "" || tc.wantStderr == "" && line != "" {
				t.Errorf("stderr = %q, want the line %q", stderr.String(), tc.wantStderr)
			}
		})
	}
}

func TestHelpHasSections(t *testing.T) {
	help, err := program(t, "--help").Output()
	if err != nil {
		t.Fatalf("--help: %v", err)
	}
	for _, want := range []string{"Tests.", "Service flags:", "--bad-thing", "Logs flags:", "Features flags:", "--feature-gates", "Global flags:", "--version"} {
		if !strings.Contains(string(help), want) {
			t.Errorf("--help has no %q:\n%s", want, help)
		}
	}
}

func TestSignalEndsTheContext(t *testing.T) {
	for _, signal := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			cmd := program(t, "--wait")
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatalf("Start() = %v", err)
			}
			lines := bufio.NewScanner(stdout)
			if !lines.Scan() || lines.Text() != "running" {
				t.Fatalf("stdout = %q, want running", lines.Text())
			}
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatalf("Signal() = %v", err)
			}
			if !lines.Scan() || lines.Text() != "ending" {
				t.Errorf("stdout = %q, want ending", lines.Text())
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("Wait() = %v, want nil", err)
			}
		})
	}
}
