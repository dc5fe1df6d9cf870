// Package check holds the tests over the repository itself.
package check

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// root is the repository's, from this package's folder.
const root = "../.."

// TestLayout holds the top level to what it was decided to be.
func TestLayout(t *testing.T) {
	want := []string{"LICENSE", "Makefile", "README.md", "buf.yaml", "deploy", "gateway", "go.mod", "go.sum", "proto", "services"}
	// What is built or run here, see .gitignore.
	ignored := []string{"bin"}
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		if name := entry.Name(); !strings.HasPrefix(name, ".") && !slices.Contains(ignored, name) {
			got = append(got, name)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("top level = %v, want %v", got, want)
	}
}

// kubernetesImporters are the folders whose packages may import
// k8s.io/kubernetes/..., which drags most of Kubernetes into every test that links
// it.
var kubernetesImporters = []string{
	"gateway",
	"services/admission",
	"services/authn",
	"services/authz",
	"deploy/test",
}

// TestImports holds who may import what.
func TestImports(t *testing.T) {
	const module = "github.com/trigate/trigate/"
	for file, imports := range goImports(t) {
		folder := filepath.ToSlash(filepath.Dir(file))
		isTest := strings.HasSuffix(file, "_test.go")
		for _, path := range imports {
			switch {
			case strings.HasPrefix(path, "k8s.io/kubernetes/"):
				if !slices.ContainsFunc(kubernetesImporters, func(allowed string) bool { return within(folder, allowed) }) {
					t.Errorf("%s imports %s: %s is not in kubernetesImporters", file, path, folder)
				}
			case strings.HasPrefix(path, module+"gateway"):
				if within(folder, "services") {
					t.Errorf("%s imports %s: services never import the gateway", file, path)
				}
			case strings.HasPrefix(path, module+"services/"):
				// What ends in "test" runs a service, or makes what it is asked.
				forTests := strings.HasSuffix(path, "/app") || strings.HasSuffix(path, "test")
				if within(folder, "gateway") && !strings.HasSuffix(path, "/client") && !(isTest && forTests) {
					t.Errorf("%s imports %s: the gateway imports only the services' client packages", file, path)
				}
			case strings.HasPrefix(path, module+"deploy/test"):
				if !within(folder, "deploy/test") {
					t.Errorf("%s imports %s: test helpers stay with the tests", file, path)
				}
			}
		}
	}
}

// TestPackageComments wants a comment on every package.
func TestPackageComments(t *testing.T) {
	documented := map[string]bool{}
	for _, file := range goFiles(t) {
		folder := filepath.Dir(file)
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		documented[folder] = documented[folder] || parsed.Doc != nil
	}
	for folder, ok := range documented {
		if !ok {
			t.Errorf("%s: no package comment", folder)
		}
	}
}

// TestGoModPins wants every module of Kubernetes' staging area at the version that
// belongs to k8s.io/kubernetes, or the parts would not fit.
func TestGoModPins(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`(?m)^\s*(?:require )?k8s\.io/kubernetes v1\.(\d+\.\d+)$`).FindSubmatch(content)
	if match == nil {
		t.Fatal("go.mod requires no k8s.io/kubernetes")
	}
	want := "v0." + string(match[1])
	replaces := regexp.MustCompile(`(?m)^\s*(k8s\.io/\S+) => (k8s\.io/\S+) (\S+)$`).FindAllStringSubmatch(string(content), -1)
	if len(replaces) == 0 {
		t.Fatal("go.mod replaces no staging module")
	}
	for _, replace := range replaces {
		if replace[1] != replace[2] || replace[3] != want {
			t.Errorf("replace %s => %s %s, want the same module at %s", replace[1], replace[2], replace[3], want)
		}
	}
}

// within tells whether folder is parent or below it.
func within(folder, parent string) bool {
	return folder == parent || strings.HasPrefix(folder, parent+"/")
}

// goFiles returns the hand-written Go files, relative to the root.
func goFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name := entry.Name(); relative != "." && strings.HasPrefix(name, ".") || relative == "bin" || relative == filepath.Join("proto", "gen") {
				return filepath.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(path, ".go") {
			files = append(files, relative)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("no Go files found")
	}
	return files
}

// goImports returns the imports of each hand-written Go file.
func goImports(t *testing.T) map[string][]string {
	t.Helper()
	imports := map[string][]string{}
	for _, file := range goFiles(t) {
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range parsed.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			imports[file] = append(imports[file], path)
		}
	}
	return imports
}
