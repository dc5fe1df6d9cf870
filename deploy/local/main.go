// Command trigate-local runs a whole Trigate control plane on one machine.
package main

import (
	"os"

	"github.com/trigate/trigate/deploy/local/app"
)

func main() {
	os.Exit(app.Main(os.Args[1:], os.Stdout, os.Stderr))
}
