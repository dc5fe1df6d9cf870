// Command trigate-gateway serves the Kubernetes API. It authenticates,
// authorizes and admits requests by asking the services authn, authz and
// admission.
package main

import (
	"fmt"
	"os"
	_ "time/tzdata" // a CronJob's time zones, where the machine has none

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // the metrics of clients
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info

	"github.com/trigate/trigate/gateway/app"
)

func main() {
	if err := cli.RunNoErrOutput(app.NewCommand()); err != nil {
		fmt.Fprintf(os.Stderr, "trigate-gateway: %v\n", err)
		os.Exit(1)
	}
}
