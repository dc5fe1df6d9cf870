// Package pki makes the keys and certificates by which the processes of a
// Trigate control plane know each other, as files under one directory, and the
// kubeconfigs that use them.
//
// There are four authorities, each trusted for one thing only:
//
//   - the cluster authority signs what Kubernetes clients see: the gateway's
//     serving certificate and people's and controllers' client certificates;
//   - the gates authority signs the mutual TLS between gateway and services, so
//     that no user's certificate is ever good for it;
//   - the front proxy authority lets extension API servers believe the gateway
//     about who its caller is;
//   - the etcd authority guards etcd.
//
// The directory is the state: Ensure looks at what is there, keeps what is good
// and makes the rest, so it may be called at every start and while the control
// plane runs.
package pki

import (
	"context"
	"crypto"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"
)

// Defaults of Config.
const (
	// DefaultClusterDomain is the DNS suffix of a cluster that was given none.
	DefaultClusterDomain = "cluster.local"
	// DefaultAuthorityValidity is kubeadm's for its authorities.
	DefaultAuthorityValidity = 10 * 365 * 24 * time.Hour
	// DefaultCertificateValidity is kubeadm's for its certificates.
	DefaultCertificateValidity = 365 * 24 * time.Hour
	// DefaultEtcdMembers is how many members of etcd have a name of their own in its
	// certificate; more than five is more than etcd recommends.
	DefaultEtcdMembers = 5
	// clockSkew backdates certificates, for peers whose clock is behind.
	clockSkew = 5 * time.Minute
)

// DefaultServiceCIDR is the range of Service addresses when Config has none.
var DefaultServiceCIDR = netip.MustParsePrefix("10.96.0.0/16")

// Config says what Ensure makes. Only Dir must be set, or Store.
type Config struct {
	// Dir is where the files are; it is made if it is missing, for the owner only.
	// Empty is the root of a Store that has no directories.
	Dir string
	// ClusterDomain is the DNS suffix of the cluster's Services, by default
	// cluster.local.
	ClusterDomain string
	// ServiceCIDR is the (first) range of Service addresses. Its first address is
	// that of the kubernetes Service, which the API's serving certificate names.
	ServiceCIDR netip.Prefix
	// AltNames are more DNS names and addresses for the certificates named, such as
	// a load balancer's for APIServer. A name of an authority is refused.
	AltNames map[Name]cert.AltNames
	// AuthorityValidity and CertificateValidity are how long new authorities and
	// certificates are valid. No certificate outlives its authority.
	AuthorityValidity, CertificateValidity time.Duration
	// RenewBefore is the rest of its validity at which a certificate is renewed, by
	// default a third of the whole.
	RenewBefore time.Duration
	// RenewAll renews every certificate whose authority has its key here.
	RenewAll bool
	// NewKeys has each certificate that is renewed get a new key too. Two files change
	// then, so a process that reads them in between keeps its old ones a little longer.
	NewKeys bool
	// Namespace is where the processes are Services of a Kubernetes cluster: the
	// names of these Services are then in the certificates. Empty if they are not.
	Namespace string
	// Store keeps the files, by default the file system.
	Store Store
	// Clock is the time, by default the real one.
	Clock clock.PassiveClock
}

// Layout tells where the files are. It is a value without state: a Layout of the
// same directory names the same files.
type Layout struct {
	// Dir is the absolute directory of all files, or empty in a Store without any.
	Dir string
	// Written are the files that the call of Ensure which returned this Layout made
	// or renewed, in the order of writing; nil if all was as it should be.
	Written []string
}

// Cert is the path of a certificate, or of an authority's bundle of certificates.
func (l *Layout) Cert(name Name) string { return filepath.Join(l.Dir, string(name)+".crt") }

// Key is the path of the private key that belongs to a certificate or authority.
func (l *Layout) Key(name Name) string { return filepath.Join(l.Dir, string(name)+".key") }

// ServiceAccountKey is the path of the private key that signs service-account
// tokens. It is RSA, since RS256 is the one algorithm that every OIDC relying
// party accepts.
func (l *Layout) ServiceAccountKey() string { return filepath.Join(l.Dir, "sa.key") }

// ServiceAccountPublicKey is the path of the public half of ServiceAccountKey. An
// operator may add older keys to it, whose tokens are to be accepted for longer.
func (l *Layout) ServiceAccountPublicKey() string { return filepath.Join(l.Dir, "sa.pub") }

// Ensure makes Config.Dir hold a complete, valid set of files, and returns where
// they are.
//
// Files that are valid are kept as they are, also if they were put there by
// someone else: an authority may come as a certificate without its key, as long
// as nothing needs to be signed by it. What is missing is made. A certificate
// that is about to expire or that lacks a name is issued anew for the key it has,
// so that one file changes, atomically, and a process that reloads never sees a
// certificate beside another's key. Remove the key as well to have both replaced.
// The names that a certificate had stay in it; remove it to be rid of them.
//
// A file that is broken (unreadable, not PEM, a key of another certificate, a
// certificate of another authority, an expired authority) is never overwritten:
// the error names it and says what is wrong.
//
// Ensure must not run twice at the same time on one directory. It looks at ctx
// between files.
func Ensure(ctx context.Context, config Config) (*Layout, error) {
	config, err := config.complete()
	if err != nil {
		return nil, err
	}
	m := &maker{Config: config, layout: Layout{Dir: config.Dir}}
	for _, spec := range authorities(config) {
		a, err := m.ensureAuthority(spec)
		if err != nil {
			return nil, err
		}
		for _, leaf := range spec.certificates {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if err := m.ensureCertificate(a, leaf); err != nil {
				return nil, err
			}
		}
	}
	if err := m.ensureServiceAccountKeys(); err != nil {
		return nil, err
	}
	return &m.layout, nil
}

func (c Config) complete() (Config, error) {
	if c.Dir == "" && c.Store == nil {
		return c, fmt.Errorf("no directory is given for the certificates")
	}
	if c.Store == nil {
		c.Store = Directory{}
	}
	if c.Dir != "" {
		dir, err := filepath.Abs(c.Dir)
		if err != nil {
			return c, fmt.Errorf("resolving the certificate directory %s: %w", c.Dir, err)
		}
		c.Dir = dir
	}
	if c.Namespace != "" {
		if problems := validation.IsDNS1123Label(c.Namespace); len(problems) > 0 {
			return c, fmt.Errorf("namespace %q: %s", c.Namespace, problems[0])
		}
	}
	if c.ClusterDomain == "" {
		c.ClusterDomain = DefaultClusterDomain
	}
	if problems := validation.IsDNS1123Subdomain(c.ClusterDomain); len(problems) > 0 {
		return c, fmt.Errorf("cluster domain %q: %s", c.ClusterDomain, problems[0])
	}
	if !c.ServiceCIDR.IsValid() {
		c.ServiceCIDR = DefaultServiceCIDR
	}
	if c.ServiceCIDR.IsSingleIP() {
		return c, fmt.Errorf("service CIDR %s: it has no address for the kubernetes Service", c.ServiceCIDR)
	}
	if c.AuthorityValidity == 0 {
		c.AuthorityValidity = DefaultAuthorityValidity
	}
	if c.CertificateValidity == 0 {
		c.CertificateValidity = DefaultCertificateValidity
	}
	if c.AuthorityValidity < 0 || c.CertificateValidity < 0 || c.RenewBefore < 0 {
		return c, fmt.Errorf("a validity of certificates is negative")
	}
	if c.RenewBefore >= c.CertificateValidity {
		return c, fmt.Errorf("certificates valid for %s cannot be renewed %s before their end", c.CertificateValidity, c.RenewBefore)
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	issued := map[Name]bool{}
	for _, a := range authorities(c) {
		for _, leaf := range a.certificates {
			issued[leaf.name] = true
		}
	}
	for name := range c.AltNames {
		if !issued[name] {
			return c, fmt.Errorf("alternative names for %q: there is no such certificate", name)
		}
	}
	return c, nil
}

// maker is one run of Ensure.
type maker struct {
	Config
	layout Layout
}

// authority is a loaded authority. A bundle of several certificates is one that is
// being replaced by another: what either has signed is good.
type authority struct {
	name   Name
	bundle []*certificate
	signer *certificate  // the one of the bundle that belongs to key, or the first
	key    crypto.Signer // nil if only the certificate is here
}
