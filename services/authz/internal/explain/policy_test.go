package explain

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	authzconfig "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/trigate/trigate/services/authz/internal/convert"
	"github.com/trigate/trigate/services/internal/servetest"
)

func TestMain(m *testing.M) { servetest.Main(m) }

// memory is a policy in memory, sorted.
type memory struct {
	roles               map[string]*rbacv1.Role
	clusterRoles        map[string]*rbacv1.ClusterRole
	roleBindings        []*rbacv1.RoleBinding
	clusterRoleBindings []*rbacv1.ClusterRoleBinding
	// listing is what goes wrong with listing bindings. Nil: nothing does.
	listing error
}

var _ Policy = (*memory)(nil)

func newMemory(objects ...runtime.Object) *memory {
	m := &memory{roles: map[string]*rbacv1.Role{}, clusterRoles: map[string]*rbacv1.ClusterRole{}}
	for _, object := range objects {
		switch o := object.(type) {
		case *rbacv1.Role:
			m.roles[o.Namespace+"/"+o.Name] = o
		case *rbacv1.ClusterRole:
			m.clusterRoles[o.Name] = o
		case *rbacv1.RoleBinding:
			m.roleBindings = append(m.roleBindings, o)
		case *rbacv1.ClusterRoleBinding:
			m.clusterRoleBindings = append(m.clusterRoleBindings, o)
		}
	}
	slices.SortFunc(m.clusterRoleBindings, func(a, b *rbacv1.ClusterRoleBinding) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(m.roleBindings, func(a, b *rbacv1.RoleBinding) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return m
}

func (m *memory) GetRole(_ context.Context, namespace, name string) (*rbacv1.Role, error) {
	if role, ok := m.roles[namespace+"/"+name]; ok {
		return role, nil
	}
	return nil, apierrors.NewNotFound(rbacv1.Resource("role"), name)
}

func (m *memory) GetClusterRole(_ context.Context, name string) (*rbacv1.ClusterRole, error) {
	if role, ok := m.clusterRoles[name]; ok {
		return role, nil
	}
	return nil, apierrors.NewNotFound(rbacv1.Resource("clusterrole"), name)
}

func (m *memory) ListRoleBindings(_ context.Context, namespace string) ([]*rbacv1.RoleBinding, error) {
	var bindings []*rbacv1.RoleBinding
	for _, b := range m.roleBindings {
		if namespace == "" || b.Namespace == namespace {
			bindings = append(bindings, b)
		}
	}
	return bindings, m.listing
}

func (m *memory) ListClusterRoleBindings(context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	return m.clusterRoleBindings, m.listing
}

// authorizer is upstream's over the policy.
func (m *memory) authorizer() *rbac.RBACAuthorizer { return rbac.New(m, m, m, m) }

func newExplainer(t *testing.T, cfg Config) *Explainer {
	t.Helper()
	if cfg.Authorizers == nil {
		cfg.Authorizers = func() []authzconfig.AuthorizerConfiguration {
			return []authzconfig.AuthorizerConfiguration{{Name: "rbac", Type: "RBAC"}}
		}
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatalf("New() = %v", err)
	}
	return e
}

// bootstrap is the policy that every cluster starts with.
func bootstrap() *memory {
	var objects []runtime.Object
	for _, role := range append(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()...) {
		objects = append(objects, &role)
	}
	for _, b := range append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...) {
		objects = append(objects, &b)
	}
	for _, roles := range bootstrappolicy.NamespaceRoles() {
		for _, role := range roles {
			objects = append(objects, &role)
		}
	}
	for _, bindings := range bootstrappolicy.NamespaceRoleBindings() {
		for _, b := range bindings {
			objects = append(objects, &b)
		}
	}
	return newMemory(objects...)
}

// argoCD is the policy that Argo CD installs into a namespace. Its manifests are
// data of another project and lie beside the repository.
func argoCD(t *testing.T, namespace string) *memory {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "..", "shared", "real", "argo-cd.yaml"))
	if err != nil {
		t.Fatalf("a real manifest is missing: %v", err)
	}
	var objects []runtime.Object
	documents := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(data)))
	buffer := make([]byte, len(data))
	for {
		n, err := documents.Read(buffer)
		if errors.Is(err, io.EOF) {
			return newMemory(objects...)
		}
		if err != nil {
			t.Fatal(err)
		}
		document := buffer[:n]
		if !bytes.Contains(document, []byte("\nkind: Role")) && !bytes.Contains(document, []byte("\nkind: ClusterRole")) {
			continue
		}
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(document, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		switch o := object.(type) {
		case *rbacv1.Role:
			o.Namespace = namespace
		case *rbacv1.RoleBinding:
			o.Namespace = namespace
		}
		objects = append(objects, object)
	}
}

// account is a service account as authenticators know it.
func account(namespace, name string) user.Info {
	return &user.DefaultInfo{
		Name:   serviceaccount.MakeUsername(namespace, name),
		Groups: append(serviceaccount.MakeGroupNames(namespace), user.AllAuthenticated),
	}
}

func person(name string, groups ...string) user.Info {
	return &user.DefaultInfo{Name: name, Groups: append(groups, user.AllAuthenticated)}
}

// resource is a question about "resource.group/subresource:name" in a namespace.
func resource(u user.Info, verb, target, namespace string) authorizer.AttributesRecord {
	target, name, _ := strings.Cut(target, ":")
	target, subresource, _ := strings.Cut(target, "/")
	kind, group, _ := strings.Cut(target, ".")
	return authorizer.AttributesRecord{
		User: u, Verb: verb, APIGroup: group, APIVersion: "v1", Resource: kind, Subresource: subresource,
		Namespace: namespace, Name: name, ResourceRequest: true,
	}
}

func path(u user.Info, verb, path string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{User: u, Verb: verb, Path: path}
}

// way writes a path to a rule as "Binding name > Role name #rule".
func way(g convert.Grant) string {
	object := func(o convert.ObjectName) string { return o.Kind + " " + inNamespace(o.Namespace, o.Name) }
	return fmt.Sprintf("%s > %s #%d", object(g.Binding), object(g.Role), g.RuleIndex)
}

// wayBy writes a path with the subject: "Binding name > Role name #rule by Kind name".
func wayBy(g convert.Grant) string {
	return fmt.Sprintf("%s by %s %s", way(g), g.Subject.Kind, inNamespace(g.Subject.Namespace, g.Subject.Name))
}

func inNamespace(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

func ways(grants []convert.Grant) []string {
	var all []string
	for _, g := range grants {
		all = append(all, wayBy(g))
	}
	return all
}

func misses(nearMisses []convert.NearMiss) []string {
	var all []string
	for _, miss := range nearMisses {
		all = append(all, strings.TrimPrefix(miss.Dimension.String(), "DIMENSION_")+" "+way(miss.Grant))
	}
	return all
}
