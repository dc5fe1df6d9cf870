// Package app is the process of the admission service: its command, flags and
// configuration, and how it runs.
package app

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/trigate/trigate/services/internal/process"
)

// program is the name of the command.
const program = "trigate-admission"

// NewCommand returns the service's command.
func NewCommand() *cobra.Command {
	o := NewOptions()
	return process.NewCommand(process.Config{
		Name: program,
		Long: `The admission service of Trigate passes, changes or rejects what is to be
written to the Kubernetes API. It runs kube-apiserver's own admission plugins,
webhooks and policies, with kube-apiserver's flags for them, and reads what those
need from the Kubernetes API of the gateway.

It is ready when it has read it all; until then it decides nothing.`,
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
