package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/kubectl/pkg/util/templates"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
)

var (
	whoAmILong = templates.LongDesc(`
	Tell whom the server takes the bearer of a token for, or the caller if no token is given.

	Here --token is the token that is asked about. It is not used for the connection: that has the
	credentials of the kubeconfig, whose user has to have the right to ask. Other users of the machine can
	see what is on a command line; --token - and --token-file - read the token from the standard input.

	The groups are those that the API server sees: system:authenticated is among them, which the gate does
	not give. -o json and -o yaml print an AuthenticateTokenResponse of the package trigate.authn.v1.

	Exit codes: 0 if the token is good, 1 if it is not, 2 if that cannot be told.`)

	whoAmIExample = templates.Examples(`
	# Who am I?
	kubectl gates whoami

	# Whose token is this?
	kubectl create token default | kubectl gates whoami --token -

	# Is the token in a file good for the audience "vault"?
	kubectl gates whoami --token-file token --audience vault`)
)

// maxTokenBytes bounds what is read as a token, as the gate does.
const maxTokenBytes = 1 << 20

// stdin is the name of the standard input as a file.
const stdin = "-"

// whoAmIOptions are those of `kubectl gates whoami`.
type whoAmIOptions struct {
	genericiooptions.IOStreams
	getter           genericclioptions.RESTClientGetter
	token, tokenFile string
	audiences        []string
	format           format
}

func newWhoAmI(getter genericclioptions.RESTClientGetter, streams genericiooptions.IOStreams) *cobra.Command {
	o := &whoAmIOptions{IOStreams: streams, getter: getter}
	command := &cobra.Command{
		Use:                   "whoami [--token - | --token-file FILE] [--audience AUDIENCE]",
		DisableFlagsInUseLine: true,
		Short:                 "Tell whose a token is",
		Long:                  whoAmILong,
		Example:               whoAmIExample,
		RunE:                  func(command *cobra.Command, args []string) error { return o.run(command, args) },
	}
	command.Flags().StringVar(&o.token, "token", "", "The token that is asked about; - reads it from the standard input.")
	command.Flags().StringVar(&o.tokenFile, "token-file", "", "A file with the token that is asked about; - is the standard input.")
	command.Flags().StringArrayVar(&o.audiences, "audience", nil, "An audience that the token has to be meant for, instead of the server's own; may be given several times.")
	command.MarkFlagsMutuallyExclusive("token", "token-file")
	o.format.addFlag(command.Flags(), formatJSON, formatYAML)
	return command
}

func (o *whoAmIOptions) run(command *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError(command, "unexpected argument %q: a token is given by --token or --token-file", args[0])
	}
	var answer *authnv1.AuthenticateTokenResponse
	var err error
	if flags := command.Flags(); flags.Changed("token") || flags.Changed("token-file") {
		answer, err = o.ask(command.Context())
	} else if len(o.audiences) > 0 {
		err = usageError(command, "--audience is about a token, and none is given")
	} else {
		answer = &authnv1.AuthenticateTokenResponse{Authenticated: true}
		answer.User, err = caller(command.Context(), o.getter)
	}
	if err != nil {
		return err
	}
	if o.format.forMachines() {
		err = o.format.print(o.Out, answer)
	} else {
		err = o.print(answer)
	}
	if err == nil && !answer.GetAuthenticated() {
		err = errNo
	}
	return err
}

// ask asks the gate about the token.
func (o *whoAmIOptions) ask(ctx context.Context) (*authnv1.AuthenticateTokenResponse, error) {
	token, err := o.readToken()
	if err != nil {
		return nil, err
	}
	gates, err := newGates(o.getter)
	if err != nil {
		return nil, err
	}
	answer := &authnv1.AuthenticateTokenResponse{}
	question := &authnv1.AuthenticateTokenRequest{Token: token, Audiences: o.audiences}
	if err := gates.post(ctx, pathToken, question, answer); err != nil {
		return nil, err
	}
	// The API server puts everybody in it whom a gate knows.
	if who := answer.GetUser(); answer.GetAuthenticated() && who != nil && !slices.Contains(who.GetGroups(), user.AllAuthenticated) {
		who.Groups = append(who.GetGroups(), user.AllAuthenticated)
	}
	return answer, nil
}

// readToken is the token that is asked about. Its errors never hold the token.
func (o *whoAmIOptions) readToken() (string, error) {
	var in io.Reader
	switch {
	case o.token == stdin || o.tokenFile == stdin:
		in = o.In
	case o.tokenFile != "":
		file, err := os.Open(o.tokenFile)
		if err != nil {
			return "", fmt.Errorf("--token-file: %w", err)
		}
		defer file.Close() //nolint:errcheck // It was only read.
		in = file
	default:
		if o.token != "" {
			printWarning(o.IOStreams, "other users of this machine can see a token on a command line; --token - reads it from the standard input")
		}
		in = strings.NewReader(o.token)
	}
	content, err := io.ReadAll(io.LimitReader(in, maxTokenBytes+1))
	if err != nil {
		return "", fmt.Errorf("reading the token: %w", err)
	}
	content = bytes.TrimSpace(content)
	switch {
	case len(content) == 0:
		return "", errors.New("the token is empty")
	case len(content) > maxTokenBytes:
		return "", fmt.Errorf("the token has more than %d bytes", maxTokenBytes)
	}
	return string(content), nil
}

// print prints the answer for people.
func (o *whoAmIOptions) print(answer *authnv1.AuthenticateTokenResponse) error {
	p := newPage(o.Out)
	if !answer.GetAuthenticated() {
		p.printf(bad, "no: ")
		if answer.GetError() == "" {
			p.printf(strong, "no authenticator knows the token\n")
		} else {
			p.printf(strong, "the token is not good: %s\n", answer.GetError())
		}
		return p.err
	}
	for _, text := range answer.GetWarnings() {
		p.printf(plain, "Warning: %s\n", text)
	}
	table := printers.GetNewTabWriter(o.Out)
	t := newPage(table)
	t.printf(plain, "ATTRIBUTE\tVALUE\n")
	row := func(name string, values ...string) {
		t.printf(plain, "%s\t%s\n", cell(name), cell(strings.Join(values, ", ")))
	}
	who := answer.GetUser()
	row("Username", who.GetName())
	if who.GetUid() != "" {
		row("UID", who.GetUid())
	}
	row("Groups", who.GetGroups()...)
	for _, extra := range who.GetExtra() {
		row("Extra: "+extra.GetKey(), extra.GetValues()...)
	}
	if len(answer.GetAudiences()) > 0 {
		row("Audiences", answer.GetAudiences()...)
	}
	if t.err != nil {
		return t.err
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if answer.GetPercentEncoded() || who.GetPercentEncoded() {
		p.printf(plain, "Names are percent-encoded here, since one of them is not UTF-8.\n")
	}
	return p.err
}
