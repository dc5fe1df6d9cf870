package app

import (
	"context"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/kubectl/pkg/util/templates"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
)

var (
	explainLong = templates.LongDesc(`
	Tell whether a user may do something, and by what path this is decided.

	` + questionHelp + `

	` + userHelp + `

	The answer names the authorizer that decides and, for RBAC, the binding, the subject in it, the
	role and the rule. For a refusal it has each authorizer's say and the rules of the user's
	bindings that fall short in one respect only, nearest first.

	-o json and -o yaml print the answer of the gate, an ExplainResponse of the package trigate.authz.v1,
	as its REST does.

	Exit codes: 0 if it is allowed, 1 if it is not, 2 if that cannot be told.`)

	explainExample = templates.Examples(`
	# Why may I list the pods of the current namespace, or why not?
	kubectl gates explain list pods

	# Why may a service account read a Secret?
	kubectl gates explain get secrets argocd-redis -n argocd --as system:serviceaccount:argocd:argocd-redis

	# May a user with two groups scale Deployments anywhere?
	kubectl gates explain update deployments.apps/scale -A --as ann --as-group dev --as-group ops

	# May anybody who is not logged in see whether the server is healthy?
	kubectl gates explain get /healthz --as system:anonymous

	# For scripts: no output, only the exit code
	kubectl gates explain delete nodes -q --as ann && echo "ann is an administrator"`)
)

// explainOptions are those of `kubectl gates explain`.
type explainOptions struct {
	genericiooptions.IOStreams
	getter   genericclioptions.RESTClientGetter
	user     userFlags
	question questionFlags
	format   format
	quiet    bool
}

func newExplain(getter genericclioptions.RESTClientGetter, streams genericiooptions.IOStreams) *cobra.Command {
	o := &explainOptions{IOStreams: streams, getter: getter}
	command := &cobra.Command{
		Use:                   "explain VERB (RESOURCE[/SUBRESOURCE] [NAME] | NONRESOURCEURL)",
		DisableFlagsInUseLine: true,
		Short:                 "Tell whether a user may do something, and why",
		Long:                  explainLong,
		Example:               explainExample,
		RunE:                  func(command *cobra.Command, args []string) error { return o.run(command, args) },
	}
	o.user.addFlags(command.Flags())
	o.question.addFlags(command.Flags())
	o.format.addFlag(command.Flags(), formatJSON, formatYAML)
	command.Flags().BoolVarP(&o.quiet, "quiet", "q", false, "If true, print nothing and just return the exit code.")
	return command
}

func (o *explainOptions) run(command *cobra.Command, args []string) error {
	q, err := o.question.parse(command, o.getter, o.IOStreams, args)
	if err != nil {
		return err
	}
	answer, err := o.ask(command.Context(), q)
	if err != nil {
		return err
	}
	switch {
	case o.quiet:
	case o.format.forMachines():
		err = o.format.print(o.Out, answer)
	default:
		err = printExplanation(o.Out, q, answer)
	}
	if err != nil {
		return err
	}
	if answer.GetAnswer().GetDecision() != authzv1.Decision_DECISION_ALLOW {
		return errNo
	}
	return nil
}

// ask asks the gate, and completes the question with the user.
func (o *explainOptions) ask(ctx context.Context, q *question) (*authzv1.ExplainResponse, error) {
	gates, err := newGates(o.getter)
	if err != nil {
		return nil, err
	}
	if q.attributes.User, err = o.user.user(ctx, o.getter); err != nil {
		return nil, err
	}
	answer := &authzv1.ExplainResponse{}
	if err := gates.post(ctx, pathExplain, &authzv1.ExplainRequest{Attributes: q.attributes}, answer); err != nil {
		return nil, err
	}
	return answer, nil
}
