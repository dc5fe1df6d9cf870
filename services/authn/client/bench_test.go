package client_test

import (
	"testing"

	"github.com/trigate/trigate/services/authn/client"
	"github.com/trigate/trigate/services/authn/internal/authntest"
)

// BenchmarkAuthenticate has one service-account token authenticated by the stock
// chain in process, which keeps its answer for ten seconds, and by the service over
// mTLS, which verifies it each time.
func BenchmarkAuthenticate(b *testing.B) {
	s := newSetup(b)
	token := authntest.Sign(b, s.key, "", authntest.ServiceAccountClaims(issuer, "shop", "cart", "uid-of-cart", []string{issuer}, nil))
	stock := newStock(b, s)
	conn := newService(b, s).connect(b)
	tokens := client.NewToken(conn)
	b.Run("stock, cached", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok, err := stock.AuthenticateRequest(headerRequest(b.Context(), token)); !ok {
				b.Fatal(err)
			}
		}
	})
	b.Run("service", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok, err := tokens.AuthenticateToken(b.Context(), token); !ok {
				b.Fatal(err)
			}
		}
	})
}
