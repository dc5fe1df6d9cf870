package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/util/templates"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
)

var (
	admitLong = templates.LongDesc(`
	Tell what admission would do to objects: whether it would let them pass, who would refuse them and
	why, with what warnings, and how it would change them. Nothing is written: the gate is asked as for a
	dry run, first for mutating admission and then for validating admission of what comes out.

	Only admission is asked, about the object as it is given. Whether the user may write it is for kubectl
	gates explain, and whether the API server finds it valid for kubectl apply --dry-run=server. An object
	of a built-in kind gets its defaults before, as in the API server. Those of a custom resource are not
	set: give an object that has them, if a policy reads them.

	A change is shown as a diff between what was given, with its defaults, and what admission returns, by
	the diff program of kubectl diff: diff -u -N, or what KUBECTL_EXTERNAL_DIFF names. Values of Secrets are masked.

	An update is one as kubectl replace makes it, with the object as it is in the cluster for the old one.

	` + userHelp + `

	-o json and -o yaml print an object of the kind AdmissionReport, with an item for each object: its
	operation, apiVersion, kind, namespace and name, whether it is allowed, by which phase it is refused
	(mutating or validating) with the Status that a client would get, warnings, audit annotations, and
	the object as admission returns it if it changes it.

	Exit codes: 0 if all objects would pass, 1 if one would not, 2 if that cannot be told.`)

	admitExample = templates.Examples(`
	# Would admission let this Pod pass, and how would it change it?
	kubectl gates admit -f pod.yaml

	# What would it say to everything in a folder, if a pipeline's service account applied it?
	kubectl gates admit -f manifests/ -R --as system:serviceaccount:ci:deployer

	# May this object be deleted, as far as admission is concerned?
	kubectl gates admit -f namespace.yaml --operation delete`)
)

// The values of --operation.
const (
	operationCreate = "create"
	operationUpdate = "update"
	operationDelete = "delete"
)

// admitOptions are those of `kubectl gates admit`.
type admitOptions struct {
	genericiooptions.IOStreams
	getter    genericclioptions.RESTClientGetter
	files     resource.FilenameOptions
	operation string
	user      userFlags
	format    format
}

func newAdmit(getter genericclioptions.RESTClientGetter, streams genericiooptions.IOStreams) *cobra.Command {
	o := &admitOptions{IOStreams: streams, getter: getter}
	command := &cobra.Command{
		Use:                   "admit (-f FILENAME | -k DIRECTORY)",
		DisableFlagsInUseLine: true,
		Short:                 "Tell what admission would do to objects",
		Long:                  admitLong,
		Example:               admitExample,
		RunE:                  func(command *cobra.Command, args []string) error { return o.run(command, args) },
	}
	cmdutil.AddFilenameOptionFlags(command, &o.files, "with the objects to ask about")
	command.Flags().StringVar(&o.operation, "operation", "", "One of: (create, update, delete). By default update for an object that exists, and create for others.")
	o.user.addFlags(command.Flags())
	o.format.addFlag(command.Flags(), formatJSON, formatYAML)
	return command
}

func (o *admitOptions) run(command *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError(command, "unexpected argument %q: objects are given by -f or -k", args[0])
	}
	if err := o.files.RequireFilenameOrKustomize(); err != nil {
		return usageError(command, "%v", err)
	}
	if operations := []string{"", operationCreate, operationUpdate, operationDelete}; !slices.Contains(operations, o.operation) {
		return usageError(command, "--operation must be one of %s, got %q", strings.Join(operations[1:], ", "), o.operation)
	}
	a, err := o.admission(command.Context())
	if err != nil {
		return err
	}
	report := newAdmissionReport()
	asked, allowed := 0, true
	// An object that nothing can be told of leaves the others alone.
	err = o.objects().Visit(func(info *resource.Info, err error) error {
		if err != nil {
			return err
		}
		asked++
		item, err := a.ask(command.Context(), info, o.operation)
		if err != nil {
			return fmt.Errorf("%s: %w", info.ObjectName(), err)
		}
		allowed = allowed && item.Allowed
		if o.format.forMachines() {
			report.Items = append(report.Items, *item)
			return nil
		}
		return item.print(o.IOStreams)
	})
	if o.format.forMachines() {
		content, jsonErr := json.Marshal(report)
		if jsonErr != nil {
			return jsonErr
		}
		if printErr := o.format.printJSON(o.Out, content); printErr != nil {
			return printErr
		}
	}
	switch {
	case err != nil:
		return err
	case asked == 0:
		return errors.New("no objects were given")
	case !allowed:
		return errNo
	default:
		return nil
	}
}

// objects are those that the flags name.
func (o *admitOptions) objects() *resource.Result {
	namespace, enforce, err := o.getter.ToRawKubeConfigLoader().Namespace()
	builder := resource.NewBuilder(o.getter).Unstructured().ContinueOnError().NamespaceParam(namespace).DefaultNamespace().Flatten()
	files := o.files
	if files.Filenames = slices.DeleteFunc(slices.Clone(files.Filenames), func(name string) bool { return name == stdin }); len(files.Filenames) < len(o.files.Filenames) {
		// The builder itself would read the process' standard input.
		builder.Stream(o.In, "STDIN")
		if enforce {
			builder.RequireNamespace()
		}
	}
	if len(files.Filenames) > 0 || files.Kustomize != "" {
		builder.FilenameParam(enforce, &files)
	}
	if err != nil {
		builder.AddError(err)
	}
	return builder.Do()
}

// admission makes the questions.
func (o *admitOptions) admission(ctx context.Context) (*admission, error) {
	gates, err := newGates(o.getter)
	if err != nil {
		return nil, err
	}
	who, err := o.user.user(ctx, o.getter)
	if err != nil {
		return nil, err
	}
	return &admission{gates: gates, user: who}, nil
}

// operations are the gate's by those of the flag.
var operations = map[string]admissionv1.Operation{
	operationCreate: admissionv1.Operation_OPERATION_CREATE,
	operationUpdate: admissionv1.Operation_OPERATION_UPDATE,
	operationDelete: admissionv1.Operation_OPERATION_DELETE,
}

// live is the object as it is in the cluster, or nil. It is not asked for if
// operation says that it does not matter.
func live(info *resource.Info, operation string) (*unstructured.Unstructured, error) {
	if operation == operationCreate || info.Name == "" {
		return nil, nil
	}
	object, err := resource.NewHelper(info.Client, info.Mapping).Get(info.Namespace, info.Name)
	if apierrors.IsNotFound(err) && operation == "" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	found, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("the server's object is a %T", object)
	}
	return found, nil
}

// replacement is what an update with object writes over old: what the server owns
// stays.
func replacement(object, old *unstructured.Unstructured) *unstructured.Unstructured {
	object = object.DeepCopy()
	object.SetUID(old.GetUID())
	object.SetResourceVersion(old.GetResourceVersion())
	object.SetGeneration(old.GetGeneration())
	object.SetCreationTimestamp(old.GetCreationTimestamp())
	object.SetDeletionTimestamp(old.GetDeletionTimestamp())
	object.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
	object.SetManagedFields(old.GetManagedFields())
	if status, ok := old.Object["status"]; ok {
		object.Object["status"] = status
	}
	return object
}
