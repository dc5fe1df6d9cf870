package convert

import (
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
)

// BenchmarkVerdict turns a verdict into a message and back.
func BenchmarkVerdict(b *testing.B) {
	verdict := verdicts["good, with all"]
	b.ReportAllocs()
	for b.Loop() {
		if _, err := FromTokenResponse(ToTokenResponse(verdict)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTokenRequest turns a question into a message and back.
func BenchmarkTokenRequest(b *testing.B) {
	token := string(make([]byte, 1000))
	audiences := authenticator.Audiences{"https://kubernetes.default.svc"}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := FromTokenRequest(ToTokenRequest(token, audiences)); err != nil {
			b.Fatal(err)
		}
	}
}
