package pki

import (
	"crypto/x509"
	"fmt"
	"time"
)

// maxCheckBefore is how long before its end Check complains of a long-lived
// certificate when its caller does not say; of a short-lived one in its last quarter. A
// renewal at the usual time keeps it from ever getting there.
const maxCheckBefore = 30 * 24 * time.Hour

// Status is what Check found of one certificate.
type Status struct {
	// Name is the certificate's, or the authority's.
	Name Name
	// Authority has signed it; empty for an authority.
	Authority Name
	// Begin and End are its validity, zero if there is no certificate.
	Begin, End time.Time
	// Problem says why something must be done about it, and is empty if nothing must.
	Problem string
}

// Check returns the state of every certificate in the order of their authorities,
// one entry for each certificate of an authority's bundle. What is missing, broken
// or ends within before (0 for 30 days or a quarter of its validity, whichever is
// shorter) has a Problem. An error means that there was no
// way to find out. Nothing is changed.
func Check(config Config, before time.Duration) ([]Status, error) {
	config, err := config.complete()
	if err != nil {
		return nil, err
	}
	c := &checker{&maker{Config: config, layout: Layout{Dir: config.Dir}}, before}
	var all []Status
	for _, spec := range authorities(config) {
		bundle, problem := c.checkedCertificates(spec.name)
		if problem != "" {
			all = append(all, Status{Name: spec.name, Problem: problem})
		}
		for _, authority := range bundle {
			all = append(all, c.status(Status{Name: spec.name}, authority))
		}
		for _, leaf := range spec.certificates {
			all = append(all, c.checkCertificate(spec.name, bundle, leaf))
		}
	}
	return all, nil
}

// checker is one call of Check.
type checker struct {
	*maker
	before time.Duration
}

// checkedCertificates returns what is wrong with a file instead of an error.
func (k *checker) checkedCertificates(name Name) ([]*certificate, string) {
	certs, err := k.readCertificates(k.layout.Cert(name))
	switch {
	case err != nil:
		return nil, oneLine(err)
	case certs == nil:
		return nil, "it is missing"
	}
	return certs, ""
}

func (k *checker) checkCertificate(authority Name, bundle []*certificate, spec certificateSpec) Status {
	s := Status{Name: spec.name, Authority: authority}
	chain, problem := k.checkedCertificates(spec.name)
	if problem != "" {
		s.Problem = problem
		return s
	}
	s = k.status(s, chain[0])
	if s.Problem != "" {
		return s
	}
	key, err := k.readKey(k.layout.Key(spec.name))
	switch {
	case err != nil:
		s.Problem = oneLine(err)
	case key == nil:
		s.Problem = "its key is missing"
	case !samePublicKey(chain[0].PublicKey, key.Public()):
		s.Problem = "its key belongs to another certificate"
	case !signedByOne(chain, bundle):
		s.Problem = fmt.Sprintf("it is not signed by %s", authority)
	default:
		s.Problem = spec.missingFrom(chain[0])
	}
	return s
}

// status judges the time of a certificate.
func (k *checker) status(s Status, c *certificate) Status {
	s.Begin, s.End = c.NotBefore, c.NotAfter
	before := k.before
	if before == 0 {
		before = min(maxCheckBefore, c.NotAfter.Sub(c.NotBefore)/4)
	}
	switch now := k.Clock.Now(); {
	case now.Before(c.NotBefore):
		s.Problem = "it is not valid yet"
	case !now.Before(c.NotAfter):
		s.Problem = "it has expired"
	case c.NotAfter.Sub(now) <= before:
		s.Problem = "it ends soon"
	}
	return s
}

// signedByOne leaves the time out: what is asked is whose a certificate is.
func signedByOne(chain, bundle []*certificate) bool {
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	begin := chain[0].NotBefore
	for _, root := range bundle {
		roots.AddCert(root)
		begin = latest(begin, root.NotBefore)
	}
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, CurrentTime: begin,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	return err == nil
}
