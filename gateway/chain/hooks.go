package chain

import (
	"context"
	"fmt"

	genericapiserver "k8s.io/apiserver/pkg/server"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
)

// heldHooks are those of upstream's post-start hooks that write, and that end the
// process if they do not succeed within a time, which is behind each. In
// kube-apiserver admission is a part of the process; here it may come later than
// that.
var heldHooks = map[string]bool{
	"rbac/bootstrap-roles":                         true, // 30 s
	"scheduling/bootstrap-system-priority-classes": true, // 30 s
	"start-service-ip-repair-controllers":          true, // 1 min
	"priority-and-fairness-config-producer":        true, // 5 min
}

// releaseHook is the hook that runs those that are held.
const releaseHook = "trigate-run-hooks-that-write"

// holdHooks has the held hooks of server run when wait returns, and not at once.
// Their checks in /readyz say until then that they have not finished.
//
// A server runs the hooks of those that it delegates to from a list of its own,
// with the same entries. So the held ones are taken from the list of the outer
// server, and all others from that of the inner one, which then runs what it has
// left when it is told to.
func holdHooks(server *aggregatorapiserver.APIAggregator, wait func(context.Context) error) error {
	outer := server.GenericAPIServer
	inner, ok := outer.NextDelegate().(*genericapiserver.GenericAPIServer)
	if !ok {
		return fmt.Errorf("the aggregator delegates to a %T, not to the kube API server", outer.NextDelegate())
	}
	outerHooks, innerHooks := outer.PostStartHooks(), inner.PostStartHooks()
	for name := range innerHooks {
		if heldHooks[name] {
			delete(outerHooks, name)
		} else {
			delete(innerHooks, name)
		}
	}
	return outer.AddPostStartHook(releaseHook, func(hook genericapiserver.PostStartHookContext) error {
		go func() { // ends with the server's context
			if err := wait(hook); err == nil {
				inner.RunPostStartHooks(hook)
			}
		}()
		return nil
	})
}
