package app

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
)

// questionHelp says how an action is named.
const questionHelp = `VERB is a verb of the Kubernetes API (get, list, watch, create, update, patch, delete, ...), or of HTTP
	for a URL.

	RESOURCE is a resource of the server; short names and groups (deployments.apps) are resolved. What
	follows a slash is a subresource if the resource has one of that name (pods/log), and else the
	NAME of an object (pods/shell), as kubectl auth can-i has it.

	NONRESOURCEURL is the path of a URL that is not a resource's; it starts with a slash.`

// The verbs that Kubernetes knows. Others are asked about as they are, with a warning:
// a role may have any word.
var (
	resourceVerbs = []string{
		"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "use", "bind", "escalate",
		"impersonate", "approve", "sign", "attest", "*",
	}
	urlVerbs = []string{"get", "put", "post", "head", "options", "delete", "patch", "*"}
)

// questionFlags and the arguments of a command name an action.
type questionFlags struct {
	subresource   string
	allNamespaces bool
}

// addFlags adds the flags.
func (f *questionFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.subresource, "subresource", "", "The subresource, such as log or scale.")
	flags.BoolVarP(&f.allNamespaces, "all-namespaces", "A", false, "If true, ask about all namespaces at once.")
}

// question is an action that is asked about.
type question struct {
	attributes *authzv1.Attributes
	// namespaced is whether objects of the resource live in namespaces.
	namespaced bool
}

// parse reads VERB and what follows it. The user is left out.
func (f *questionFlags) parse(command *cobra.Command, getter genericclioptions.RESTClientGetter, streams genericiooptions.IOStreams, args []string) (*question, error) {
	if len(args) < 2 || len(args) > 3 {
		return nil, usageError(command, "expected VERB and RESOURCE[/SUBRESOURCE] [NAME], or VERB and NONRESOURCEURL, got %d arguments", len(args))
	}
	warn := func(format string, args ...any) { printWarning(streams, fmt.Sprintf(format, args...)) }
	verb, what := args[0], args[1]
	if strings.HasPrefix(what, "/") {
		switch {
		case len(args) > 2:
			return nil, usageError(command, "a URL has no name, got %q", args[2])
		case f.subresource != "":
			return nil, usageError(command, "--subresource is for resources, not for URLs")
		case f.allNamespaces:
			return nil, usageError(command, "--all-namespaces is for resources, not for URLs")
		case strings.ContainsAny(what, "?#"):
			return nil, usageError(command, "%q is more than the path of a URL: leave out what follows it", what)
		}
		if !slices.Contains(urlVerbs, verb) {
			warn("verb %q is not a known verb of HTTP", verb)
		}
		return &question{attributes: &authzv1.Attributes{Verb: verb, Path: what}}, nil
	}
	if !slices.Contains(resourceVerbs, verb) {
		warn("verb %q is not a known verb", verb)
	}
	what, rest, _ := strings.Cut(what, "/")
	resource, err := lookUp(getter, what)
	if err != nil {
		return nil, err
	}
	if !resource.known {
		warn("the server has no resource type %q", what)
	}
	a := &authzv1.Attributes{
		Verb: verb, ResourceRequest: true, Subresource: f.subresource,
		ApiGroup: resource.Group, ApiVersion: resource.Version, Resource: resource.Resource,
	}
	switch {
	case rest == "":
	case f.subresource == "" && slices.Contains(resource.subresources, rest):
		a.Subresource = rest
	default:
		a.Name = rest
	}
	if len(args) == 3 {
		if a.Name != "" {
			return nil, usageError(command, "%s has no subresource %q, and two names, %[2]q and %[3]q, are one too many", resource.Resource, a.Name, args[2])
		}
		a.Name = args[2]
	}
	if a.Namespace, err = f.namespace(getter, resource, a.GetName(), warn); err != nil {
		return nil, err
	}
	return &question{attributes: a, namespaced: resource.namespaced}, nil
}

// namespace is the one that a request for the resource would be in.
func (f *questionFlags) namespace(getter genericclioptions.RESTClientGetter, resource *servedResource, name string, warn func(string, ...any)) (string, error) {
	namespace, given, err := getter.ToRawKubeConfigLoader().Namespace()
	switch {
	case err != nil:
		return "", err
	case resource.namespaced && f.allNamespaces:
		return "", nil
	case resource.namespaced:
		return namespace, nil
	case given:
		warn("resource %q is not in namespaces: the namespace is left out", resource.Resource)
	}
	// A request for a namespace is one in it, so that its roles count.
	if resource.GroupResource() == (schema.GroupResource{Resource: "namespaces"}) {
		return name, nil
	}
	return "", nil
}

// servedResource is what the server knows of a resource.
type servedResource struct {
	schema.GroupVersionResource
	known, namespaced bool
	subresources      []string
}

// lookUp finds a resource by what a user calls it. What the server does not have is
// taken for a resource in namespaces.
func lookUp(getter genericclioptions.RESTClientGetter, name string) (*servedResource, error) {
	full, short := schema.ParseResourceArg(strings.ToLower(name))
	found := &servedResource{GroupVersionResource: schema.GroupVersionResource{Group: short.Group, Resource: short.Resource}, namespaced: true}
	if name == "*" {
		found.known = true
		return found, nil
	}
	// What a user may impersonate is in no discovery, and in no namespace.
	if name == "users" || name == "groups" {
		found.known, found.namespaced = true, false
		return found, nil
	}
	mapper, err := getter.ToRESTMapper()
	if err != nil {
		return nil, err
	}
	gvr := schema.GroupVersionResource{}
	if full != nil {
		// If it is not this, it may still be a group and resource.
		gvr, _ = mapper.ResourceFor(*full)
	}
	if gvr.Empty() {
		if gvr, err = mapper.ResourceFor(short.WithVersion("")); err != nil {
			if meta.IsNoMatchError(err) {
				err = nil
			}
			return found, err
		}
	}
	found.GroupVersionResource, found.known = gvr, true
	client, err := getter.ToDiscoveryClient()
	if err != nil {
		return nil, err
	}
	list, err := client.ServerResourcesForGroupVersion(gvr.GroupVersion().String())
	if err != nil {
		return nil, err
	}
	for _, served := range list.APIResources {
		if served.Name == gvr.Resource {
			found.namespaced = served.Namespaced
		}
		if sub, ok := strings.CutPrefix(served.Name, gvr.Resource+"/"); ok {
			found.subresources = append(found.subresources, sub)
		}
	}
	return found, nil
}

// String is the action as a person would say it.
func (q *question) String() string {
	a := q.attributes
	if !a.GetResourceRequest() {
		return a.GetVerb() + " " + a.GetPath()
	}
	text := a.GetVerb() + " " + resourceName(a)
	if a.GetName() != "" {
		text += fmt.Sprintf(" %q", a.GetName())
	}
	switch {
	case q.namespaced && a.GetNamespace() == "":
		text += " in all namespaces"
	case q.namespaced:
		text += " in namespace " + a.GetNamespace()
	}
	return text
}

// resourceName is a resource as kubectl takes it.
func resourceName(a *authzv1.Attributes) string {
	name := schema.GroupResource{Group: a.GetApiGroup(), Resource: a.GetResource()}.String()
	if a.GetSubresource() != "" {
		name += "/" + a.GetSubresource()
	}
	return name
}
