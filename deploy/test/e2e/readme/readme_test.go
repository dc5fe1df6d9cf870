package readme

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

// elsewhere are sections whose commands another test runs, with the reason.
var elsewhere = map[string]string{
	"On Kubernetes": "its commands need a cluster: deploy/test/node runs them in one",
}

// isServer tells whether a command runs until it is stopped. `make run` is run beside
// those that follow, as in another terminal.
func isServer(words []string) bool {
	return strings.Join(words, " ") == "make run" || words[0] == "bin/trigate-local" && words[len(words)-1] != "--help"
}

// TestCommands runs the commands of README.md in one shell, in their order, in a folder
// that looks like the repository with its programs built. A command has to succeed, or
// to fail with the output that the README shows.
//
// Of make only `make run` is run, without building what is there; the other targets
// take as long as all tests, or are these tests, and have to be targets.
func TestCommands(t *testing.T) {
	root, err := framework.Root()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	commands, err := parse(string(content))
	if err != nil {
		t.Fatal(err)
	}
	if len(commands) < 10 {
		t.Fatalf("README.md has %d commands: it is not read as it should be", len(commands))
	}
	dir := lookalike(t, root)
	shell := startShell(t, dir)
	for _, c := range commands {
		if reason, ok := elsewhere[c.section]; ok {
			t.Logf("%s: not run here: %s", c.name(), reason)
			continue
		}
		ok := t.Run(c.name(), func(t *testing.T) {
			switch words := c.words(); {
			case isServer(words):
				ownFolder(t, words)
				// The README goes on with the first; another one is only shown.
				owner := t
				if words[0] == "make" {
					owner = shell.owner
				}
				shell.startServer(t, owner, recipe(t, root, words))
			case words[0] == "make":
				recipe(t, root, words)
			default:
				shell.run(t, &c)
			}
		})
		if !ok && isServer(c.words()) {
			t.Fatal("nothing can be run without it")
		}
	}
}

// ownFolder wants the folder of a --dir outside of the test's not to be there, and
// removes it at the end.
func ownFolder(t *testing.T, words []string) {
	t.Helper()
	i := slices.Index(words, "--dir")
	if i < 0 || !filepath.IsAbs(words[i+1]) {
		return
	}
	dir := words[i+1]
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("%s is somebody's (%v): the README's command would change it", dir, err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
}

// recipe is the last command that make would run for a target, which has to exist; of
// another command it is the command itself.
func recipe(t *testing.T, root string, words []string) string {
	t.Helper()
	if words[0] != "make" {
		return strings.Join(words, " ")
	}
	output, err := exec.CommandContext(t.Context(), "make", append([]string{"--dry-run", "--no-print-directory", "-C", root}, words[1:]...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, output)
	}
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	return lines[len(lines)-1]
}

// lookalike is a folder with links to what is in the repository, and to the programs.
func lookalike(t *testing.T, root string) string {
	t.Helper()
	dir := t.TempDir()
	kubectl, err := framework.Binary("kubectl")
	if err != nil {
		t.Fatal(err)
	}
	links := map[string]string{"bin": filepath.Dir(kubectl)}
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if name := entry.Name(); name != "bin" && !strings.HasPrefix(name, ".") {
			links[name] = filepath.Join(root, name)
		}
	}
	for name, target := range links {
		if target, err = filepath.Abs(target); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
