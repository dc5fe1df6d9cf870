package app

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/cert"

	"github.com/trigate/trigate/deploy/pki"
)

const (
	flagDir            = "dir"
	flagKubeconfig     = "kubeconfig"
	flagContext        = "context"
	flagInCluster      = "in-cluster"
	flagNamespace      = "namespace"
	flagDryRun         = "dry-run"
	flagClusterDomain  = "cluster-domain"
	flagServiceCIDR    = "service-cluster-ip-range"
	flagGatewayAddress = "gateway-address"
	flagEtcdAddress    = "etcd-address"
	flagAuthority      = "authority-validity"
	flagValidity       = "validity"
	flagServer         = "server"
	flagOutput         = "output"
	flagBefore         = "before"
	flagAll            = "all"
	flagNewKeys        = "new-keys"
	flagWatch          = "watch"
	flagUser           = "user"
	flagGroup          = "group"
	flagRotated        = "authority"
	flagStep           = "step"
)

// defaultNamespace is that of the manifests.
const defaultNamespace = "trigate-system"

const (
	adminUser  = "kubernetes-admin"
	adminGroup = "system:masters"
)

// Options are the flags of all commands; each command binds those that it has.
type Options struct {
	// Dir, or Kubeconfig, Context or InCluster, say where the PKI is kept.
	Dir, Kubeconfig, Context string
	// InCluster uses the service account of the Pod.
	InCluster bool
	// Namespace has the Secrets, and the Services whose names are in certificates.
	Namespace string
	// DryRun changes nothing.
	DryRun bool
	// ClusterDomain and ServiceCIDR are the cluster's that the gateway serves, and
	// the domain also that of the Services.
	ClusterDomain, ServiceCIDR string
	// GatewayAddresses and EtcdAddresses are more names and addresses.
	GatewayAddresses, EtcdAddresses []string
	// AuthorityValidity and Validity are those of what is made.
	AuthorityValidity, Validity time.Duration
	// Server is the URL in kubeconfigs.
	Server string
	// Output is the kubeconfig to write.
	Output string
	// Before is how long before its end a certificate is renewed, or reported.
	Before time.Duration
	// All and NewKeys are the Config's RenewAll and NewKeys.
	All, NewKeys bool
	// Watch is the interval at which renew looks again; 0 means once.
	Watch time.Duration
	// Authority is what rotate replaces, and Step the step that it takes.
	Authority, Step string
	// User and Groups are in a certificate of kubeconfig, and ClientValidity is its.
	User           string
	Groups         []string
	ClientValidity time.Duration
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	return &Options{
		ClusterDomain:     pki.DefaultClusterDomain,
		ServiceCIDR:       pki.DefaultServiceCIDR.String(),
		AuthorityValidity: pki.DefaultAuthorityValidity,
		Validity:          pki.DefaultCertificateValidity,
		User:              adminUser,
		ClientValidity:    pki.DefaultCertificateValidity,
	}
}

func (o *Options) addStoreFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Dir, flagDir, "", "Keep the PKI as files in `DIR`.")
	fs.StringVar(&o.Kubeconfig, flagKubeconfig, "", "Keep the PKI as Secrets in the cluster of this kubeconfig `FILE`.")
	fs.StringVar(&o.Context, flagContext, "", "Keep the PKI as Secrets in the cluster of this `CONTEXT` of the kubeconfig.")
	fs.BoolVar(&o.InCluster, flagInCluster, false, "Keep the PKI as Secrets in the cluster in which this is a Pod.")
	fs.StringVar(&o.Namespace, flagNamespace, "", "The `NAMESPACE` of the Secrets, and of the Services whose names are in the certificates; by default "+defaultNamespace+" for Secrets, and none for files.")
}

// addNameFlags are what certificates must have.
func (o *Options) addNameFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.ClusterDomain, flagClusterDomain, o.ClusterDomain, "The DNS `DOMAIN` of Services.")
	fs.StringVar(&o.ServiceCIDR, flagServiceCIDR, o.ServiceCIDR, "The gateway's flag of the same name: the `CIDR` whose first address is that of the Service kubernetes.")
	fs.StringSliceVar(&o.GatewayAddresses, flagGatewayAddress, nil, "A further `NAME` or IP address at which clients reach the gateway; may be repeated.")
	fs.StringSliceVar(&o.EtcdAddresses, flagEtcdAddress, nil, "A further `NAME` or IP address of etcd; may be repeated.")
}

func (o *Options) addIssueFlags(fs *pflag.FlagSet) {
	o.addNameFlags(fs)
	fs.DurationVar(&o.AuthorityValidity, flagAuthority, o.AuthorityValidity, "How long new authorities are valid.")
	fs.DurationVar(&o.Validity, flagValidity, o.Validity, "How long new certificates are valid; none outlives its authority.")
	fs.BoolVar(&o.DryRun, flagDryRun, false, "Change nothing, and say what would be written.")
}

func (o *Options) addServerFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Server, flagServer, "", "The `URL` of the gateway in kubeconfigs; its host is in the serving certificate then, too. By default that of the first --gateway-address, or https://127.0.0.1:6443 for files and the Service's name for Secrets.")
}

// Complete sets what follows from other flags.
func (o *Options) Complete() {
	if o.Namespace == "" && o.Dir == "" {
		o.Namespace = defaultNamespace
	}
}

// Validate returns all that is wrong, each problem starting with its flag.
func (o *Options) Validate() []error {
	var errs []error
	problem := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--%s: "+format, append([]any{flag}, args...)...))
	}
	switch remote := o.Kubeconfig != "" || o.Context != "" || o.InCluster; {
	case o.Dir == "" && !remote:
		problem(flagDir, "say where the PKI is: --dir, --kubeconfig, --context or --in-cluster")
	case o.Dir != "" && remote:
		problem(flagDir, "the PKI is either in a directory or in Secrets, which --kubeconfig, --context and --in-cluster say")
	case o.InCluster && (o.Kubeconfig != "" || o.Context != ""):
		problem(flagInCluster, "it excludes --kubeconfig and --context")
	}
	if o.Namespace != "" {
		for _, why := range validation.IsDNS1123Label(o.Namespace) {
			problem(flagNamespace, "%q: %s", o.Namespace, why)
		}
	}
	for _, why := range validation.IsDNS1123Subdomain(o.ClusterDomain) {
		problem(flagClusterDomain, "%q: %s", o.ClusterDomain, why)
	}
	if _, err := o.serviceCIDR(); err != nil {
		problem(flagServiceCIDR, "%s", err)
	}
	for flag, addresses := range map[string][]string{flagGatewayAddress: o.GatewayAddresses, flagEtcdAddress: o.EtcdAddresses} {
		for _, address := range addresses {
			if net.ParseIP(address) == nil && len(validation.IsDNS1123Subdomain(address)) > 0 && len(validation.IsWildcardDNS1123Subdomain(address)) > 0 {
				problem(flag, "%q is neither a DNS name nor an IP address (without a port)", address)
			}
		}
	}
	if o.Server != "" {
		if u, err := url.Parse(o.Server); err != nil || u.Scheme != "https" || u.Hostname() == "" {
			problem(flagServer, "%q is not an https:// URL", o.Server)
		}
	}
	for flag, d := range map[string]time.Duration{flagBefore: o.Before, flagWatch: o.Watch} {
		if d < 0 {
			problem(flag, "%s is negative", d)
		}
	}
	for flag, d := range map[string]time.Duration{flagAuthority: o.AuthorityValidity, flagValidity: min(o.Validity, o.ClientValidity)} {
		if d <= 0 {
			problem(flag, "%s is not a time to be valid", d)
		}
	}
	if o.Watch > 0 && (o.All || o.DryRun) {
		problem(flagWatch, "it excludes --all and --dry-run")
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errs
}

// serviceCIDR is the first of what may be two ranges.
func (o *Options) serviceCIDR() (netip.Prefix, error) {
	first, _, _ := strings.Cut(o.ServiceCIDR, ",")
	prefix, err := netip.ParsePrefix(first)
	if err != nil {
		return netip.Prefix{}, err
	}
	if prefix.IsSingleIP() {
		return netip.Prefix{}, fmt.Errorf("%s has no address for the Service kubernetes", prefix)
	}
	return prefix, nil
}

// config is what the PKI is to be. The options must be valid.
func (o *Options) config(store pki.Store) pki.Config {
	cidr, _ := o.serviceCIDR()
	gateways := o.GatewayAddresses
	if u, err := url.Parse(o.Server); err == nil && u.Hostname() != "" {
		gateways = append(slices.Clone(gateways), u.Hostname())
	}
	return pki.Config{
		Dir:                 o.Dir,
		ClusterDomain:       o.ClusterDomain,
		ServiceCIDR:         cidr,
		AltNames:            map[pki.Name]cert.AltNames{pki.APIServer: altNames(gateways), pki.EtcdServer: altNames(o.EtcdAddresses)},
		AuthorityValidity:   o.AuthorityValidity,
		CertificateValidity: o.Validity,
		RenewBefore:         o.Before,
		RenewAll:            o.All,
		NewKeys:             o.NewKeys,
		Namespace:           o.Namespace,
		Store:               store,
	}
}

func altNames(addresses []string) cert.AltNames {
	var names cert.AltNames
	for _, address := range addresses {
		if ip := net.ParseIP(address); ip != nil {
			names.IPs = append(names.IPs, ip)
		} else {
			names.DNSNames = append(names.DNSNames, address)
		}
	}
	return names
}

// server is the URL in kubeconfigs.
func (o *Options) server() string {
	switch {
	case o.Server != "":
		return o.Server
	case len(o.GatewayAddresses) > 0:
		return "https://" + net.JoinHostPort(o.GatewayAddresses[0], "6443")
	case o.Dir != "":
		return "https://127.0.0.1:6443"
	}
	return fmt.Sprintf("https://trigate-gateway.%s.svc", o.Namespace)
}
