// Command kubectl-gates is a kubectl plugin, `kubectl gates`: it asks Trigate's gates
// what they decide, and why.
package main

import (
	"os"

	"github.com/trigate/trigate/deploy/kubectl-gates/app"
)

func main() {
	os.Exit(app.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
