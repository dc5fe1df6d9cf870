package app

import (
	"fmt"
	"slices"
	"strings"
)

// maxReplicas keeps a typing error from starting a thousand processes.
const maxReplicas = 9

// Validate returns all that is wrong, each problem starting with its flag.
func (o CompletedOptions) Validate() []error {
	var errs []error
	if o.Dir == "" {
		errs = append(errs, fmt.Errorf("--%s: it is empty", flagDir))
	}
	if o.Port < 0 || o.Port > 65535 {
		errs = append(errs, fmt.Errorf("--%s %d: not a port, which is 0 to 65535", flagPort, o.Port))
	}
	for _, count := range []struct {
		flag  string
		value int
	}{{flagGateways, o.Gateways}, {flagReplicas, o.Replicas}} {
		if count.value < 1 || count.value > maxReplicas {
			errs = append(errs, fmt.Errorf("--%s %d: not 1 to %d", count.flag, count.value, maxReplicas))
		}
	}
	if o.StopTimeout < 0 {
		errs = append(errs, fmt.Errorf("--%s %s: it is negative", flagStopTimeout, o.StopTimeout))
	}
	for _, p := range passedThrough {
		args := *o.ExtraArgs[p.process]
		// A value may stand alone after its flag; the first can only be a flag.
		if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
			errs = append(errs, fmt.Errorf("--%s-arg %s: not a flag; write --%s-arg=--NAME=VALUE", p.process, args[0], p.process))
		}
		if slices.Contains(args, "") {
			errs = append(errs, fmt.Errorf("--%s-arg: it is empty", p.process))
		}
	}
	return errs
}
