// Command trigate-admission is the admission service: it passes, changes or
// rejects what is to be written, by the admission plugins of kube-apiserver.
package main

import (
	"os"

	"github.com/trigate/trigate/services/admission/app"
	"github.com/trigate/trigate/services/internal/process"
)

func main() {
	os.Exit(process.Main(app.NewCommand()))
}
