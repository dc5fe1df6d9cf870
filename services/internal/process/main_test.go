package process

import (
	"os"
	"testing"

	"github.com/trigate/trigate/services/internal/servetest"
)

// childVariable makes the test binary the program under test.
const childVariable = "TRIGATE_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		os.Exit(Main(newTestCommand()))
	}
	servetest.Main(m)
}
