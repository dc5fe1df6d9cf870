// Command trigate-authz is the authorization service: it decides what users may
// do, by the authorizers of kube-apiserver.
package main

import (
	"os"

	"github.com/trigate/trigate/services/authz/app"
	"github.com/trigate/trigate/services/internal/process"
)

func main() {
	os.Exit(process.Main(app.NewCommand()))
}
