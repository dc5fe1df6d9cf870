package app

import (
	"context"
	"errors"

	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

// message is what a user is told of an error: kubectl's own words, and what is known
// beyond.
func message(err error) string {
	// One that is wrapped has all of it in its text.
	if gate := (*gateError)(nil); errors.As(err, &gate) && error(gate) == err {
		return kubectlMessage(gate.err) + "\n" + gate.hint
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "error: no answer in time: " + err.Error()
	}
	return kubectlMessage(err)
}

// kubectlMessage is what kubectl says of an error. Not for concurrent use: kubectl
// has one handler for all.
func kubectlMessage(err error) string {
	var text string
	cmdutil.BehaviorOnFatal(func(s string, _ int) { text = s })
	defer cmdutil.DefaultBehaviorOnFatal()
	cmdutil.CheckErr(err)
	return text
}
