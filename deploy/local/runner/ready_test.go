package runner

import "testing"

func TestFailedChecks(t *testing.T) {
	for _, tt := range []struct{ name, body, want string }{
		{"verbose", "[+]ping ok\n[-]etcd failed: reason withheld\n[-]gate/authz failed: reason withheld\nreadyz check failed\n", "etcd, gate/authz"},
		{"a Status", `{"kind":"Status","message":"no"}` + "\n", `{"kind":"Status","message":"no"}`},
		{"nothing", "", ""},
	} {
		if got := failedChecks(tt.body); got != tt.want {
			t.Errorf("%s: failedChecks = %q, want %q", tt.name, got, tt.want)
		}
	}
}
