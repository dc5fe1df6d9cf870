package app

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/kubectl/pkg/util/templates"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
)

var (
	whoCanLong = templates.LongDesc(`
	List the users, groups and service accounts that RBAC allows an action, each with the binding
	and the role that it has it from. A subject that several bindings allow it is listed for each.

	` + questionHelp + `

	Members of system:masters may always do it. Authorizers other than RBAC cannot tell whom they
	allow; those there are named on the standard error stream.

	-o json and -o yaml print all pages of the answer as one WhoCanResponse of the package
	trigate.authz.v1; -o name prints each subject once, as user/NAME, group/NAME or
	serviceaccount/NAMESPACE/NAME.

	Exit codes: 0 if there is an answer, even if it is nobody, and 2 if there is none.`)

	whoCanExample = templates.Examples(`
	# Who may read the Secrets of kube-system?
	kubectl gates who-can get secrets -n kube-system

	# Who may delete nodes?
	kubectl gates who-can delete nodes

	# Who may run commands in the pods of any namespace?
	kubectl gates who-can create pods/exec -A

	# Who may read the metrics?
	kubectl gates who-can get /metrics -o name`)
)

// whoCanPageSize is how many grants are asked for at once: as much as the gate gives.
const whoCanPageSize = 1000

// whoCanOptions are those of `kubectl gates who-can`.
type whoCanOptions struct {
	genericiooptions.IOStreams
	getter    genericclioptions.RESTClientGetter
	question  questionFlags
	format    format
	noHeaders bool
	pageSize  int32
}

func newWhoCan(getter genericclioptions.RESTClientGetter, streams genericiooptions.IOStreams) *cobra.Command {
	o := &whoCanOptions{IOStreams: streams, getter: getter}
	command := &cobra.Command{
		Use:                   "who-can VERB (RESOURCE[/SUBRESOURCE] [NAME] | NONRESOURCEURL)",
		DisableFlagsInUseLine: true,
		Short:                 "List who may do something",
		Long:                  whoCanLong,
		Example:               whoCanExample,
		RunE:                  func(command *cobra.Command, args []string) error { return o.run(command, args) },
	}
	o.question.addFlags(command.Flags())
	o.format.addFlag(command.Flags(), formatJSON, formatYAML, formatName)
	command.Flags().BoolVar(&o.noHeaders, "no-headers", false, "If true, print the table without its headers.")
	command.Flags().Int32Var(&o.pageSize, "chunk-size", whoCanPageSize, "How many subjects are asked for at once, 1000 at most.")
	return command
}

func (o *whoCanOptions) run(command *cobra.Command, args []string) error {
	if o.pageSize < 1 || o.pageSize > whoCanPageSize {
		return usageError(command, "--chunk-size must be from 1 to %d, got %d", whoCanPageSize, o.pageSize)
	}
	q, err := o.question.parse(command, o.getter, o.IOStreams, args)
	if err != nil {
		return err
	}
	gates, err := newGates(o.getter)
	if err != nil {
		return err
	}
	whole := &authzv1.WhoCanResponse{}
	printGrants := o.printer()
	progress := printers.IsTerminal(o.ErrOut)
	err = o.pages(command.Context(), gates, q, func(page *authzv1.WhoCanResponse) error {
		whole.Grants = append(whole.Grants, page.GetGrants()...)
		whole.NotListedBy, whole.Errors, whole.Revision = page.GetNotListedBy(), page.GetErrors(), page.GetRevision()
		whole.PercentEncoded = whole.GetPercentEncoded() || page.GetPercentEncoded()
		if progress && page.GetNextPageToken() != "" {
			// On a line of its own, which the next one replaces. The answer is what counts.
			_, _ = fmt.Fprintf(o.ErrOut, "\r%d so far ...\r", len(whole.GetGrants()))
		}
		return printGrants(page.GetGrants())
	})
	if err != nil {
		return err
	}
	if o.format.forMachines() {
		return o.format.print(o.Out, whole)
	}
	return o.notes(q, whole)
}

// pages calls each with one page of the answer after the other.
func (o *whoCanOptions) pages(ctx context.Context, gates *gates, q *question, each func(*authzv1.WhoCanResponse) error) error {
	request := &authzv1.WhoCanRequest{Attributes: q.attributes, PageSize: o.pageSize}
	for {
		page := &authzv1.WhoCanResponse{}
		if err := gates.post(ctx, pathWhoCan, request, page); err != nil {
			return err
		}
		if err := each(page); err != nil {
			return err
		}
		if page.GetNextPageToken() == "" {
			return nil
		}
		request.PageToken = page.GetNextPageToken()
	}
}

// printer returns what prints a page of grants, as it comes.
func (o *whoCanOptions) printer() func([]*authzv1.Grant) error {
	switch o.format.value {
	case formatJSON, formatYAML:
		return func([]*authzv1.Grant) error { return nil }
	case formatName:
		seen := map[string]bool{}
		return func(grants []*authzv1.Grant) error {
			p := newPage(o.Out)
			for _, grant := range grants {
				if name := subjectPath(grant); !seen[name] {
					seen[name] = true
					p.printf(plain, "%s\n", name)
				}
			}
			return p.err
		}
	}
	// Columns keep their widths from page to page.
	table := printers.GetNewTabWriter(o.Out)
	started := o.noHeaders
	return func(grants []*authzv1.Grant) error {
		p := newPage(table)
		if !started && len(grants) > 0 {
			started = true
			p.printf(plain, "KIND\tNAME\tNAMESPACE\tBINDING\tROLE\n")
		}
		for _, grant := range grants {
			p.printf(plain, "%s\t%s\t%s\t%s\t%s\n", grant.GetSubject().GetKind(), cell(grant.GetSubject().GetName()), subjectNamespace(grant),
				cell(objectPath(grant.GetBinding())), cell(objectPath(grant.GetRole())))
		}
		if p.err != nil {
			return p.err
		}
		return table.Flush()
	}
}

// notes tells what the table does not.
func (o *whoCanOptions) notes(q *question, whole *authzv1.WhoCanResponse) error {
	p := newPage(o.ErrOut)
	if len(whole.GetGrants()) == 0 {
		p.printf(plain, "Nobody but system:masters may %s by RBAC.\n", q)
	}
	if others := whole.GetNotListedBy(); len(others) > 0 {
		p.printf(plain, "Others may be allowed by what cannot list whom it allows: %s.\n", strings.Join(others, ", "))
	}
	for _, text := range whole.GetErrors() {
		p.printf(plain, "A role that is bound cannot be read: %s\n", text)
	}
	if whole.GetPercentEncoded() {
		p.printf(plain, "Names are percent-encoded, since one of them is not UTF-8.\n")
	}
	return p.err
}

// cell keeps a text in its cell of a table.
func cell(text string) string {
	return strings.NewReplacer("\t", `\t`, "\n", `\n`, "\f", `\f`, "\v", `\v`).Replace(text)
}

// objectPath is an RBAC object as kubectl takes it, with the namespace in between.
func objectPath(o *authzv1.ObjectName) string {
	if o.GetNamespace() != "" {
		return o.GetKind() + "/" + o.GetNamespace() + "/" + o.GetName()
	}
	return o.GetKind() + "/" + o.GetName()
}

// subjectPath is a subject in one word.
func subjectPath(grant *authzv1.Grant) string {
	kind, name := strings.ToLower(grant.GetSubject().GetKind()), grant.GetSubject().GetName()
	if namespace := subjectNamespace(grant); namespace != "" {
		return kind + "/" + namespace + "/" + name
	}
	return kind + "/" + name
}
