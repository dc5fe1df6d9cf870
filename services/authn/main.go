// Command trigate-authn is the authentication service: it knows the bearers of
// tokens, and signs the tokens of service accounts.
package main

import (
	"os"

	"github.com/trigate/trigate/services/authn/app"
	"github.com/trigate/trigate/services/internal/process"
)

func main() {
	os.Exit(process.Main(app.NewCommand()))
}
