// Command trigate-gateway serves the Kubernetes API. It authenticates,
// authorizes and admits requests by asking the services authn, authz and
// admission.
package main

import (
	"fmt"
	"os"

	"k8s.io/component-base/cli"

	"github.com/trigate/trigate/gateway/app"
)

func main() {
	if err := cli.RunNoErrOutput(app.NewCommand()); err != nil {
		fmt.Fprintf(os.Stderr, "trigate-gateway: %v\n", err)
		os.Exit(1)
	}
}
