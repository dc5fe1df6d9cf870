// Package limits tests requests near the limits: large objects, and users, paths and
// selectors whose bytes are no ASCII or no UTF-8. Stock kube-apiserver and Trigate
// have to answer all of them alike.
package limits

import (
	"testing"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }
