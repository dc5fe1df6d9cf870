package pki_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/trigate/trigate/deploy/pki"
)

// start is when the tests' clocks begin.
var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// signedBy is the whole PKI.
var signedBy = map[pki.Name][]pki.Name{
	pki.ClusterCA:    {pki.APIServer, pki.KubeletClient, pki.Admin, pki.Controllers},
	pki.GatesCA:      {pki.Gateway, pki.Authn, pki.Authz, pki.Admission},
	pki.FrontProxyCA: {pki.FrontProxyClient},
	pki.EtcdCA:       {pki.EtcdServer, pki.EtcdClient},
}

func TestEnsureCertificates(t *testing.T) {
	layout := ensure(t, pki.Config{Dir: t.TempDir()})
	local := []string{"localhost", "127.0.0.1", "::1"}
	for _, tt := range []struct {
		name         pki.Name
		authority    pki.Name
		subject      string
		server       bool
		client       bool
		hosts        []string
		foreignHosts []string
	}{
		{name: pki.APIServer, authority: pki.ClusterCA, subject: "CN=kube-apiserver", server: true, hosts: append(local,
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "10.96.0.1")},
		{name: pki.KubeletClient, authority: pki.ClusterCA, subject: "CN=kube-apiserver-kubelet-client,O=system:masters", client: true},
		{name: pki.Admin, authority: pki.ClusterCA, subject: "CN=kubernetes-admin,O=system:masters", client: true},
		{name: pki.Controllers, authority: pki.ClusterCA, subject: "CN=system:kube-controller-manager", client: true},
		{name: pki.Gateway, authority: pki.GatesCA, subject: "CN=system:trigate:gateway,O=system:trigate", server: true, client: true, hosts: append(local, "trigate-gateway")},
		{name: pki.Authn, authority: pki.GatesCA, subject: "CN=system:trigate:authn,O=system:trigate", server: true, client: true, hosts: append(local, "trigate-authn"), foreignHosts: []string{"trigate-authz"}},
		{name: pki.Authz, authority: pki.GatesCA, subject: "CN=system:trigate:authz,O=system:trigate", server: true, client: true, hosts: append(local, "trigate-authz")},
		{name: pki.Admission, authority: pki.GatesCA, subject: "CN=system:trigate:admission,O=system:trigate", server: true, client: true, hosts: append(local, "trigate-admission")},
		{name: pki.FrontProxyClient, authority: pki.FrontProxyCA, subject: "CN=front-proxy-client", client: true},
		{name: pki.EtcdServer, authority: pki.EtcdCA, subject: "CN=etcd-server", server: true, client: true, hosts: append(local, "etcd")},
		{name: pki.EtcdClient, authority: pki.EtcdCA, subject: "CN=etcd-client", client: true},
	} {
		t.Run(string(tt.name), func(t *testing.T) {
			c := readCert(t, layout.Cert(tt.name))
			if got := c.Subject.String(); got != tt.subject {
				t.Errorf("subject = %s, want %s", got, tt.subject)
			}
			for usage, want := range map[x509.ExtKeyUsage]bool{x509.ExtKeyUsageServerAuth: tt.server, x509.ExtKeyUsageClientAuth: tt.client} {
				if got := slices.Contains(c.ExtKeyUsage, usage); got != want {
					t.Errorf("has key usage %v = %v, want %v", usage, got, want)
				}
			}
			for authority := range signedBy {
				err := verify(t, layout, c, authority)
				if mine := authority == tt.authority; (err == nil) != mine {
					t.Errorf("verified by %s: %v, want success %v", authority, err, mine)
				}
			}
			for _, host := range tt.hosts {
				if err := c.VerifyHostname(host); err != nil {
					t.Errorf("host %s: %v", host, err)
				}
			}
			for _, host := range tt.foreignHosts {
				if err := c.VerifyHostname(host); err == nil {
					t.Errorf("host %s is accepted", host)
				}
			}
			key, ok := readKey(t, layout.Key(tt.name)).(*ecdsa.PrivateKey)
			if !ok || key.Curve != elliptic.P256() {
				t.Fatalf("key is a %T, want ECDSA on P-256", key)
			}
			if !key.PublicKey.Equal(c.PublicKey) {
				t.Errorf("the key is not that of the certificate")
			}
		})
	}
}

func TestEnsureServiceAccountKey(t *testing.T) {
	layout := ensure(t, pki.Config{Dir: t.TempDir()})
	key, ok := readKey(t, layout.ServiceAccountKey()).(*rsa.PrivateKey)
	if !ok || key.N.BitLen() != 2048 {
		t.Fatalf("service-account key is a %T, want RSA of 2048 bits", key)
	}
	publics, err := keyutil.PublicKeysFromFile(layout.ServiceAccountPublicKey())
	if err != nil {
		t.Fatal(err)
	}
	if len(publics) != 1 || !key.PublicKey.Equal(publics[0]) {
		t.Errorf("sa.pub is not the public key of sa.key")
	}
	data, err := os.ReadFile(layout.ServiceAccountPublicKey())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), "PRIVATE") {
		t.Errorf("sa.pub holds a private key")
	}
}

func TestEnsureFileModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "pki")
	ensure(t, pki.Config{Dir: dir})
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o700 {
		t.Errorf("mode of the directory = %o, want 700", got)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(entries), 2*(4+11+1); got != want {
		t.Errorf("%d files, want %d", got, want)
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}
		want := os.FileMode(0o644)
		if strings.HasSuffix(entry.Name(), ".key") {
			want = 0o600
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("mode of %s = %o, want %o", entry.Name(), got, want)
		}
	}
}

func TestEnsureKeepsWhatIsValid(t *testing.T) {
	config := pki.Config{Dir: t.TempDir()}
	first := ensure(t, config)
	if got, want := len(first.Written), 2*(4+11+1); got != want {
		t.Errorf("first Ensure wrote %d files, want %d", got, want)
	}
	before := snapshot(t, config.Dir)
	second := ensure(t, config)
	if len(second.Written) > 0 {
		t.Errorf("second Ensure wrote %v, want nothing", second.Written)
	}
	if changed := difference(before, snapshot(t, config.Dir)); len(changed) > 0 {
		t.Errorf("second Ensure changed %v", changed)
	}
}

func TestEnsureConfiguredNames(t *testing.T) {
	layout := ensure(t, pki.Config{
		Dir:           t.TempDir(),
		ClusterDomain: "example.org",
		ServiceCIDR:   netip.MustParsePrefix("fd00:10::/108"),
		AltNames: map[pki.Name]cert.AltNames{
			pki.APIServer: {DNSNames: []string{"api.example.org"}, IPs: []net.IP{net.IPv4(192, 0, 2, 7)}},
		},
	})
	c := readCert(t, layout.Cert(pki.APIServer))
	for _, host := range []string{"kubernetes.default.svc.example.org", "fd00:10::1", "api.example.org", "192.0.2.7"} {
		if err := c.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	if err := readCert(t, layout.Cert(pki.Gateway)).VerifyHostname("api.example.org"); err == nil {
		t.Errorf("another certificate got the API server's name")
	}
}

// TestEnsureMends starts from a complete directory, changes it or lets time pass,
// and says which files a further Ensure writes.
func TestEnsureMends(t *testing.T) {
	complete := completeAt(t, start)
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, layout *pki.Layout, config *pki.Config)
		after  time.Duration
		want   []string
	}{
		{
			name:  "well before the end",
			after: 242 * 24 * time.Hour,
		},
		{
			name:  "near the end, certificates change and keys and authorities stay",
			after: 245 * 24 * time.Hour,
			want:  certificateFiles(),
		},
		{
			name:  "after the end",
			after: 500 * 24 * time.Hour,
			want:  certificateFiles(),
		},
		{
			name:  "a certificate is missing",
			after: time.Hour,
			change: func(t *testing.T, layout *pki.Layout, _ *pki.Config) {
				remove(t, layout.Cert(pki.Authz))
			},
			want: []string{"authz.crt"},
		},
		{
			name: "a key is missing",
			change: func(t *testing.T, layout *pki.Layout, _ *pki.Config) {
				remove(t, layout.Key(pki.Authz))
			},
			want: []string{"authz.crt", "authz.key"},
		},
		{
			name: "a name is missing",
			change: func(_ *testing.T, _ *pki.Layout, config *pki.Config) {
				config.AltNames = map[pki.Name]cert.AltNames{pki.APIServer: {DNSNames: []string{"api.example.org"}}}
			},
			want: []string{"apiserver.crt"},
		},
		{
			name: "an address is missing",
			change: func(_ *testing.T, _ *pki.Layout, config *pki.Config) {
				config.ServiceCIDR = netip.MustParsePrefix("10.0.0.0/24")
			},
			want: []string{"apiserver.crt"},
		},
		{
			name: "an authority is lost",
			change: func(t *testing.T, layout *pki.Layout, _ *pki.Config) {
				remove(t, layout.Cert(pki.EtcdCA), layout.Key(pki.EtcdCA))
			},
			want: []string{"etcd-ca.crt", "etcd-ca.key", "etcd-client.crt", "etcd-server.crt"},
		},
		{
			name:  "an authority's certificate is lost but not its key",
			after: time.Hour,
			change: func(t *testing.T, layout *pki.Layout, _ *pki.Config) {
				remove(t, layout.Cert(pki.EtcdCA))
			},
			want: []string{"etcd-ca.crt"},
		},
		{
			name: "an authority came without its key",
			change: func(t *testing.T, layout *pki.Layout, _ *pki.Config) {
				remove(t, layout.Key(pki.GatesCA))
			},
		},
		{
			name:  "near the end, what an authority without key has signed stays",
			after: 245 * 24 * time.Hour,
			change: func(t *testing.T, layout *pki.Layout, _ *pki.Config) {
				remove(t, layout.Key(pki.GatesCA))
			},
			want: slices.DeleteFunc(certificateFiles(), func(name string) bool {
				return slices.Contains(signedBy[pki.GatesCA], pki.Name(strings.TrimSuffix(name, ".crt")))
			}),
		},
		{
			name: "an authority is being replaced",
			change: func(t *testing.T, layout *pki.Layout, _ *pki.Config) {
				other := ensure(t, pki.Config{Dir: t.TempDir(), Clock: clocktesting.NewFakePassiveClock(start)})
				bundle := slices.Concat(readFile(t, other.Cert(pki.GatesCA)), readFile(t, layout.Cert(pki.GatesCA)))
				write(t, layout.Cert(pki.GatesCA), bundle)
				write(t, layout.Key(pki.GatesCA), readFile(t, other.Key(pki.GatesCA)))
				remove(t, layout.Cert(pki.Authn))
			},
			want: []string{"authn.crt"},
		},
		{
			name: "older keys stay in sa.pub",
			change: func(t *testing.T, layout *pki.Layout, _ *pki.Config) {
				other := ensure(t, pki.Config{Dir: t.TempDir()})
				write(t, layout.ServiceAccountPublicKey(), slices.Concat(readFile(t, other.ServiceAccountPublicKey()), readFile(t, layout.ServiceAccountPublicKey())))
			},
		},
		{
			name: "sa.pub is missing",
			change: func(t *testing.T, layout *pki.Layout, _ *pki.Config) {
				remove(t, layout.ServiceAccountPublicKey())
			},
			want: []string{"sa.pub"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(start)
			config := pki.Config{Dir: copyOf(t, complete), Clock: clock}
			layout := &pki.Layout{Dir: config.Dir}
			before := snapshot(t, config.Dir)
			if tt.change != nil {
				tt.change(t, layout, &config)
			}
			clock.SetTime(start.Add(tt.after))
			layout = ensure(t, config)
			var got []string
			for _, path := range layout.Written {
				got = append(got, filepath.Base(path))
			}
			slices.Sort(got)
			if !slices.Equal(got, tt.want) {
				t.Errorf("wrote %v, want %v", got, tt.want)
			}
			after := snapshot(t, config.Dir)
			for _, name := range tt.want {
				if before[name] == after[name] && name != "sa.pub" {
					t.Errorf("%s did not change", name)
				}
			}
			for authority, names := range signedBy {
				for _, name := range names {
					c := readCert(t, layout.Cert(name))
					if err := verify(t, layout, c, authority); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					if clock.Now().After(c.NotAfter) {
						t.Errorf("%s ended on %s", name, c.NotAfter)
					}
				}
			}
			if again := ensure(t, config); len(again.Written) > 0 {
				t.Errorf("once more wrote %v, want nothing", again.Written)
			}
		})
	}
}

func TestEnsureNeverOutlivesAuthority(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(start)
	config := pki.Config{Dir: t.TempDir(), Clock: clock, AuthorityValidity: 10 * time.Hour, CertificateValidity: 6 * time.Hour}
	ensure(t, config)
	clock.SetTime(start.Add(5 * time.Hour))
	layout := ensure(t, config)
	if len(layout.Written) == 0 {
		t.Fatal("nothing was renewed")
	}
	end := readCert(t, layout.Cert(pki.GatesCA)).NotAfter
	if got := readCert(t, layout.Cert(pki.Authn)).NotAfter; !got.Equal(end) {
		t.Errorf("renewed certificate ends on %s, its authority on %s", got, end)
	}
	clock.SetTime(start.Add(9 * time.Hour))
	if layout := ensure(t, config); len(layout.Written) > 0 {
		t.Errorf("wrote %v, which end no later", layout.Written)
	}
}

func TestEnsureBrokenFiles(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(start)
	other := ensure(t, pki.Config{Dir: t.TempDir(), Clock: clock})
	complete := completeAt(t, start)
	for _, tt := range []struct {
		name   string
		damage func(t *testing.T, layout *pki.Layout)
		after  time.Duration
		file   string
		want   string
	}{
		{
			name:   "a certificate that is not PEM",
			damage: func(t *testing.T, l *pki.Layout) { write(t, l.Cert(pki.Authn), []byte("not a certificate")) },
			file:   "authn.crt", want: "does not contain any valid RSA or ECDSA certificates",
		},
		{
			name:   "an empty certificate",
			damage: func(t *testing.T, l *pki.Layout) { write(t, l.Cert(pki.ClusterCA), nil) },
			file:   "ca.crt", want: "does not contain any valid RSA or ECDSA certificates",
		},
		{
			name:   "a key that is not PEM",
			damage: func(t *testing.T, l *pki.Layout) { write(t, l.Key(pki.Gateway), []byte("x")) },
			file:   "gateway.key", want: "does not contain a valid RSA or ECDSA private key",
		},
		{
			name: "a directory instead of a key",
			damage: func(t *testing.T, l *pki.Layout) {
				remove(t, l.Key(pki.Gateway))
				if err := os.Mkdir(l.Key(pki.Gateway), 0o700); err != nil {
					t.Fatal(err)
				}
			},
			file: "gateway.key", want: "is a directory",
		},
		{
			name:   "another certificate's key",
			damage: func(t *testing.T, l *pki.Layout) { write(t, l.Key(pki.Authn), readFile(t, l.Key(pki.Authz))) },
			file:   "authn.key", want: "does not belong to certificate",
		},
		{
			name: "a certificate of another authority",
			damage: func(t *testing.T, l *pki.Layout) {
				write(t, l.Cert(pki.Authn), readFile(t, other.Cert(pki.Authn)))
				write(t, l.Key(pki.Authn), readFile(t, other.Key(pki.Authn)))
			},
			file: "authn.crt", want: "is not signed by",
		},
		{
			name:   "another authority's key",
			damage: func(t *testing.T, l *pki.Layout) { write(t, l.Key(pki.EtcdCA), readFile(t, l.Key(pki.GatesCA))) },
			file:   "etcd-ca.key", want: "does not belong to a certificate",
		},
		{
			name: "not an authority",
			damage: func(t *testing.T, l *pki.Layout) {
				write(t, l.Cert(pki.EtcdCA), readFile(t, l.Cert(pki.EtcdClient)))
				write(t, l.Key(pki.EtcdCA), readFile(t, l.Key(pki.EtcdClient)))
			},
			file: "etcd-ca.crt", want: "is not that of an authority",
		},
		{
			name:   "an expired authority",
			damage: func(*testing.T, *pki.Layout) {},
			after:  11 * 365 * 24 * time.Hour,
			file:   "ca.crt", want: "expired on 2036-02-27",
		},
		{
			name:   "an authority from the future",
			damage: func(*testing.T, *pki.Layout) {},
			after:  -time.Hour,
			file:   "ca.crt", want: "is the clock right?",
		},
		{
			name: "no key to sign with",
			damage: func(t *testing.T, l *pki.Layout) {
				remove(t, l.Key(pki.ClusterCA), l.Cert(pki.Admin))
			},
			file: "admin.crt", want: "ca.key, is missing",
		},
		{
			name:   "no service-account key for a public one",
			damage: func(t *testing.T, l *pki.Layout) { remove(t, l.ServiceAccountKey()) },
			file:   "sa.key", want: "restore it",
		},
		{
			name: "another service-account key",
			damage: func(t *testing.T, l *pki.Layout) {
				write(t, l.ServiceAccountPublicKey(), readFile(t, other.ServiceAccountPublicKey()))
			},
			file: "sa.pub", want: "is not among them",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			clock.SetTime(start)
			config := pki.Config{Dir: copyOf(t, complete), Clock: clock}
			tt.damage(t, &pki.Layout{Dir: config.Dir})
			clock.SetTime(start.Add(tt.after))
			before := snapshot(t, config.Dir)
			_, err := pki.Ensure(t.Context(), config)
			if err == nil {
				t.Fatal("Ensure succeeded")
			}
			for _, want := range []string{filepath.Join(config.Dir, tt.file), tt.want} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error has several lines: %q", err)
			}
			if changed := difference(before, snapshot(t, config.Dir)); len(changed) > 0 {
				t.Errorf("Ensure changed %v", changed)
			}
		})
	}
}

func TestEnsureConfigErrors(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config pki.Config
		want   string
	}{
		{"no directory", pki.Config{}, "no directory"},
		{"domain", pki.Config{Dir: "x", ClusterDomain: "a_b"}, `cluster domain "a_b"`},
		{"service range", pki.Config{Dir: "x", ServiceCIDR: netip.MustParsePrefix("10.0.0.1/32")}, "service CIDR 10.0.0.1/32"},
		{"validity", pki.Config{Dir: "x", CertificateValidity: -time.Hour}, "negative"},
		{"renewal", pki.Config{Dir: "x", CertificateValidity: time.Hour, RenewBefore: time.Hour}, "cannot be renewed"},
		{"names of nothing", pki.Config{Dir: "x", AltNames: map[pki.Name]cert.AltNames{"apiservr": {}}}, `"apiservr"`},
		{"names of an authority", pki.Config{Dir: "x", AltNames: map[pki.Name]cert.AltNames{pki.GatesCA: {}}}, `"gates-ca"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			_, err := pki.Ensure(t.Context(), tt.config)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Ensure = %v, want an error with %q", err, tt.want)
			}
			if entries, _ := os.ReadDir("."); len(entries) > 0 {
				t.Errorf("Ensure made %v", entries)
			}
		})
	}
}

func TestEnsureStopsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := pki.Ensure(ctx, pki.Config{Dir: t.TempDir()}); !errors.Is(err, context.Canceled) {
		t.Errorf("Ensure = %v, want %v", err, context.Canceled)
	}
}

func ensure(t *testing.T, config pki.Config) *pki.Layout {
	t.Helper()
	layout, err := pki.Ensure(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return layout
}

// completeAt is a directory made at some time. Tests that need many begin with
// copies of one, since making an RSA key takes its time.
func completeAt(t *testing.T, when time.Time) string {
	t.Helper()
	return ensure(t, pki.Config{Dir: t.TempDir(), Clock: clocktesting.NewFakePassiveClock(when)}).Dir
}

func copyOf(t *testing.T, dir string) string {
	t.Helper()
	target := filepath.Join(t.TempDir(), "pki")
	if err := os.CopyFS(target, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return target
}

// verify checks the chain at the time when the certificate begins.
func verify(t *testing.T, layout *pki.Layout, c *x509.Certificate, authority pki.Name) error {
	t.Helper()
	roots, err := cert.CertsFromFile(layout.Cert(authority))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	when := c.NotBefore
	for _, root := range roots {
		pool.AddCert(root)
		if root.NotBefore.After(when) {
			when = root.NotBefore
		}
	}
	_, err = c.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: when, KeyUsages: c.ExtKeyUsage})
	return err
}

// certificateFiles is what is renewed when time has passed, sorted.
func certificateFiles() []string {
	var names []string
	for _, signed := range signedBy {
		for _, name := range signed {
			names = append(names, string(name)+".crt")
		}
	}
	slices.Sort(names)
	return names
}

func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.IsDir() {
			files[entry.Name()] = "a directory"
			continue
		}
		files[entry.Name()] = string(readFile(t, filepath.Join(dir, entry.Name())))
	}
	return files
}

func difference(a, b map[string]string) []string {
	var names []string
	for name := range a {
		if a[name] != b[name] {
			names = append(names, name)
		}
	}
	for name := range b {
		if _, ok := a[name]; !ok {
			names = append(names, name)
		}
	}
	return slices.Sorted(slices.Values(names))
}

func readCert(t *testing.T, path string) *x509.Certificate {
	t.Helper()
	certs, err := cert.CertsFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return certs[0]
}

func readKey(t *testing.T, path string) any {
	t.Helper()
	key, err := keyutil.PrivateKeyFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}
