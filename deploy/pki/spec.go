package pki

import (
	"crypto/x509"
	"fmt"
	"net"

	"k8s.io/client-go/util/cert"
)

// Name is what a key pair is called; its files are Name.crt and Name.key.
type Name string

// The authorities.
const (
	// ClusterCA signs what Kubernetes clients see; it is --client-ca-file and the
	// content of every namespace's kube-root-ca.crt.
	ClusterCA Name = "ca"
	// GatesCA signs the gateway's and the services' certificates for each other.
	GatesCA Name = "gates-ca"
	// FrontProxyCA signs the certificate of the gateway towards extension API servers.
	FrontProxyCA Name = "front-proxy-ca"
	// EtcdCA signs etcd's certificate and that of its clients.
	EtcdCA Name = "etcd-ca"
)

// The certificates of ClusterCA.
const (
	// APIServer is what the gateway serves the Kubernetes API with.
	APIServer Name = "apiserver"
	// KubeletClient is how the gateway authenticates to kubelets.
	KubeletClient Name = "apiserver-kubelet-client"
	// Admin is the operator: a member of system:masters.
	Admin Name = "admin"
	// Controllers is kube-controller-manager.
	Controllers Name = "controllers"
)

// The certificates of GatesCA: one for each process, as server and as client.
const (
	// Gateway is the gateway as the services see it.
	Gateway Name = "gateway"
	// Authn is the authentication service.
	Authn Name = "authn"
	// Authz is the authorization service.
	Authz Name = "authz"
	// Admission is the admission service.
	Admission Name = "admission"
)

// The certificates of FrontProxyCA and EtcdCA.
const (
	// FrontProxyClient is the gateway as extension API servers see it.
	FrontProxyClient Name = "front-proxy-client"
	// EtcdServer is etcd, towards clients and other members.
	EtcdServer Name = "etcd-server"
	// EtcdClient is the gateway as etcd sees it.
	EtcdClient Name = "etcd-client"
)

// systemMasters is the group that Kubernetes allows everything.
const systemMasters = "system:masters"

var (
	server = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	client = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	peer   = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
)

// authoritySpec describes an authority and all that it signs.
type authoritySpec struct {
	name         Name
	commonName   string
	certificates []certificateSpec
}

// certificateSpec describes a certificate that an authority signs.
type certificateSpec struct {
	name         Name
	commonName   string
	organization string
	usages       []x509.ExtKeyUsage
	altNames     cert.AltNames
}

// authorities is the whole PKI.
func authorities(config Config) []authoritySpec {
	specs := []authoritySpec{
		{ClusterCA, "trigate-ca", []certificateSpec{
			{APIServer, "kube-apiserver", "", server, apiServerNames(config)},
			{KubeletClient, "kube-apiserver-kubelet-client", systemMasters, client, cert.AltNames{}},
			{Admin, "kubernetes-admin", systemMasters, client, cert.AltNames{}},
			{Controllers, "system:kube-controller-manager", "", client, cert.AltNames{}},
		}},
		{GatesCA, "trigate-gates-ca", []certificateSpec{
			gate(config, Gateway), gate(config, Authn), gate(config, Authz), gate(config, Admission),
		}},
		{FrontProxyCA, "trigate-front-proxy-ca", []certificateSpec{
			{FrontProxyClient, "front-proxy-client", "", client, cert.AltNames{}},
		}},
		{EtcdCA, "trigate-etcd-ca", []certificateSpec{
			{EtcdServer, "etcd-server", "", peer, etcdNames(config)},
			{EtcdClient, "etcd-client", "", client, cert.AltNames{}},
		}},
	}
	for _, a := range specs {
		for i, leaf := range a.certificates {
			more := config.AltNames[leaf.name]
			a.certificates[i].altNames.DNSNames = append(leaf.altNames.DNSNames, more.DNSNames...)
			a.certificates[i].altNames.IPs = append(leaf.altNames.IPs, more.IPs...)
		}
	}
	return specs
}

// gate is the certificate of one of our processes. Clients verify the name
// trigate-NAME whatever the address, so that a certificate of one service is not
// good for another.
func gate(config Config, name Name) certificateSpec {
	names := localNames("trigate-" + string(name))
	names.DNSNames = append(names.DNSNames, serviceNames(config, "trigate-"+string(name))...)
	return certificateSpec{name, "system:trigate:" + string(name), "system:trigate", peer, names}
}

// serviceNames are the names that a Service has in DNS, none without a namespace.
func serviceNames(config Config, service string) []string {
	if config.Namespace == "" {
		return nil
	}
	name := service + "." + config.Namespace
	return []string{name, name + ".svc", name + ".svc." + config.ClusterDomain}
}

// etcdNames has the members by name, too: a member believes another whose
// certificate has a name that leads to its address.
func etcdNames(config Config) cert.AltNames {
	const service = "trigate-etcd"
	names := localNames("etcd")
	if config.Namespace == "" {
		return names
	}
	names.DNSNames = append(names.DNSNames, service)
	names.DNSNames = append(names.DNSNames, serviceNames(config, service)...)
	names.DNSNames = append(names.DNSNames, serviceNames(config, service+"-client")...)
	for i := range DefaultEtcdMembers {
		member := fmt.Sprintf("%s-%d.%s", service, i, service)
		names.DNSNames = append(names.DNSNames, member)
		names.DNSNames = append(names.DNSNames, serviceNames(config, member)...)
	}
	return names
}

func localNames(names ...string) cert.AltNames {
	return cert.AltNames{
		DNSNames: append(names, "localhost"),
		IPs:      []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
}

func apiServerNames(config Config) cert.AltNames {
	names := localNames("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc."+config.ClusterDomain)
	names.IPs = append(names.IPs, config.ServiceCIDR.Masked().Addr().Next().AsSlice())
	for _, service := range []string{"trigate-gateway", "trigate-gateway-headless"} {
		if config.Namespace != "" {
			names.DNSNames = append(names.DNSNames, service)
		}
		names.DNSNames = append(names.DNSNames, serviceNames(config, service)...)
	}
	return names
}

// Names returns the whole PKI: each authority, and what it signs.
func Names() map[Name][]Name {
	names := map[Name][]Name{}
	for _, a := range authorities(Config{ServiceCIDR: DefaultServiceCIDR, ClusterDomain: DefaultClusterDomain}) {
		for _, leaf := range a.certificates {
			names[a.name] = append(names[a.name], leaf.name)
		}
	}
	return names
}
