// Package app is the process of the authorization service: its command, flags
// and configuration, and how it runs.
package app

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/trigate/trigate/services/internal/process"
)

// program is the name of the command.
const program = "trigate-authz"

// NewCommand returns the service's command.
func NewCommand() *cobra.Command {
	o := NewOptions()
	return process.NewCommand(process.Config{
		Name: program,
		Long: `The authorization service of Trigate decides what users may do. It runs
kube-apiserver's own authorizers, with kube-apiserver's flags for them, and
reads roles and bindings from the Kubernetes API of the gateway.

It is ready when it has read them all; until then it decides nothing. What no
authorizer allows is refused, and there is no default that allows everything:
--authorization-mode or --authorization-config has to be given.`,
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
