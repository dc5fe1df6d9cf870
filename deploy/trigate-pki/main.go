// Command trigate-pki makes and renews the certificates of a Trigate control plane.
package main

import (
	"os"

	"github.com/trigate/trigate/deploy/trigate-pki/app"
)

func main() {
	os.Exit(app.Main(os.Args[1:], os.Stdout, os.Stderr))
}
