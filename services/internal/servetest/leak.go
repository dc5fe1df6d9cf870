package servetest

import (
	"testing"

	"go.uber.org/goleak"
)

// Main runs a package's tests and fails if they leave goroutines behind. It is
// the whole of a TestMain.
func Main(m *testing.M) {
	goleak.VerifyTestMain(m, leakOptions()...)
}

// CheckLeaks fails the test if goroutines that it started are left at its end.
// Call it first, since it looks when the other cleanups have run.
func CheckLeaks(t testing.TB) {
	t.Helper()
	options := append(leakOptions(), goleak.IgnoreCurrent())
	t.Cleanup(func() { goleak.VerifyNone(t, options...) })
}

// leakOptions are goroutines that packages of others start once for the whole
// process.
func leakOptions() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
	}
}
