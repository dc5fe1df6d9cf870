package stage

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"runtime"
	"sync"
	"time"
	"weak"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	requestx509 "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"
)

// certificateMemory is upstream's client-certificate authenticator with a memory.
// Upstream verifies the client's chain on every request, though neither the chain
// nor, most of the time, the CA bundle has changed since the last one of the same
// connection.
//
// What is remembered is a success, for one connection and one generation of the
// bundle, until the first certificate of the verified chain ends: a new bundle and
// the end of a certificate count from the next request on. A failure is never
// remembered, since time may turn it into a success. The memory of a connection goes
// with the connection. It is safe for concurrent use.
type certificateMemory struct {
	verify  *requestx509.Authenticator
	options requestx509.VerifyOptionFunc
	clock   clock.PassiveClock

	// outcomes has a *certificateOutcome for a weak.Pointer[tls.ConnectionState].
	outcomes sync.Map
}

var _ authenticator.Request = (*certificateMemory)(nil)

// certificateOutcome is a success. It does not change.
type certificateOutcome struct {
	// roots is the bundle's generation: its provider makes a new pool for new content.
	roots    *x509.CertPool
	until    time.Time
	response *authenticator.Response
}

// newCertificateMemory returns an authenticator by the CAs of options.
func newCertificateMemory(options requestx509.VerifyOptionFunc, convert requestx509.UserConversion, clock clock.PassiveClock) *certificateMemory {
	timed := requestx509.UserConversionFunc(func(chain []*x509.Certificate) (*authenticator.Response, bool, error) {
		resp, ok, err := convert.User(chain)
		if err != nil || !ok {
			return resp, ok, err
		}
		resp.User = &timedUser{Info: resp.User, until: endOf(chain)}
		return resp, true, nil
	})
	return &certificateMemory{verify: requestx509.NewDynamic(options, timed), options: options, clock: clock}
}

// timedUser carries the end of a chain out of upstream's authenticator.
type timedUser struct {
	user.Info
	until time.Time
}

// AuthenticateRequest implements authenticator.Request.
func (m *certificateMemory) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	options, ok := m.options()
	if !ok {
		return nil, false, nil
	}
	connection := weak.Make(req.TLS)
	if known, ok := m.outcomes.Load(connection); ok {
		outcome := known.(*certificateOutcome)
		if outcome.roots == options.Roots && m.clock.Now().Before(outcome.until) {
			return outcome.response, true, nil
		}
	}
	// Upstream asks for the options anew. If the bundle changes in between, the
	// outcome is remembered for the older one, and verified again next time.
	resp, ok, err := m.verify.AuthenticateRequest(req)
	if err != nil || !ok {
		return nil, false, err
	}
	timed := resp.User.(*timedUser)
	resp.User = timed.Info
	m.remember(req.TLS, connection, &certificateOutcome{roots: options.Roots, until: timed.until, response: resp})
	return resp, true, nil
}

func (m *certificateMemory) remember(state *tls.ConnectionState, connection weak.Pointer[tls.ConnectionState], outcome *certificateOutcome) {
	if _, known := m.outcomes.Swap(connection, outcome); !known {
		runtime.AddCleanup(state, func(connection weak.Pointer[tls.ConnectionState]) {
			m.outcomes.Delete(connection)
		}, connection)
	}
}

// endOf returns when the first certificate of a chain ends.
func endOf(chain []*x509.Certificate) time.Time {
	end := chain[0].NotAfter
	for _, certificate := range chain[1:] {
		if certificate.NotAfter.Before(end) {
			end = certificate.NotAfter
		}
	}
	return end
}
