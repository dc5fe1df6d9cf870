package decisions

import (
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	authzclient "github.com/trigate/trigate/services/authz/client"
)

// BenchmarkHit is a decision that is kept, for a service account as pods have it.
func BenchmarkHit(b *testing.B) {
	for name, reuse := range map[string]authzclient.Reuse{
		"any namespace": authzclient.ReuseAnyNamespace, "any name": authzclient.ReuseAnyName, "same name": authzclient.ReuseSameName,
	} {
		b.Run(name, func(b *testing.B) {
			c, s := start(b)
			s.set(func() { s.answer.Reuse = reuse })
			record := question("kube-system", "coredns-7db6d8ff4d-4zx2k")
			var q authorizer.Attributes = &record // as the request filter has it
			record.User = &user.DefaultInfo{
				Name:   "system:serviceaccount:kube-system:deployment-controller",
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", user.AllAuthenticated},
			}
			if _, _, err := c.Authorize(b.Context(), q); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := c.Authorize(b.Context(), q); err != nil {
					b.Fatal(err)
				}
			}
			if s.calls() != 1 {
				b.Errorf("%d questions were asked of the service, want 1", s.calls())
			}
		})
	}
}
