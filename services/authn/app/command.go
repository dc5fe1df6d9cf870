// Package app is the process of the authentication service: its command, flags
// and configuration, and how it runs.
package app

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/trigate/trigate/services/internal/process"
)

// program is the name of the command.
const program = "trigate-authn"

// NewCommand returns the service's command.
func NewCommand() *cobra.Command {
	o := NewOptions()
	return process.NewCommand(process.Config{
		Name: program,
		Long: `The authentication service of Trigate tells who the bearer of a token is. It runs
kube-apiserver's own token authenticators, with kube-apiserver's flags and
AuthenticationConfiguration files for them, and reads service accounts, and what
their tokens are bound to, from the Kubernetes API of the gateway. It holds the
key that signs service-account tokens, and no other process does.

Client certificates, front proxies and anonymous requests are the gateway's: of
an AuthenticationConfiguration this process reads the part "jwt".`,
		AddFlags: o.AddFlags,
		Run: func(ctx context.Context) error {
			completed := o.Complete()
			if err := errors.Join(completed.Validate()...); err != nil {
				return err
			}
			config, err := NewConfig(completed)
			if err != nil {
				return err
			}
			return Run(ctx, config.Complete())
		},
	})
}
