package runner

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/trigate/trigate/deploy/local/supervise"
	"github.com/trigate/trigate/deploy/pki"
)

// The kinds of processes, which are also the names of the first of each.
const (
	EtcdProcess        = "etcd"
	AuthnProcess       = string(pki.Authn)
	AuthzProcess       = string(pki.Authz)
	AdmissionProcess   = string(pki.Admission)
	GatewayProcess     = string(pki.Gateway)
	ControllersProcess = string(pki.Controllers)
)

const (
	// programPrefix makes the name of a program of ours out of its kind.
	programPrefix = "trigate-"
	// controllersProgram is upstream's.
	controllersProgram = "kube-controller-manager"
	// issuer is in every service-account token; authn signs by it, and the gateway
	// publishes it.
	issuer = "https://kubernetes.default.svc." + pki.DefaultClusterDomain
	// aggregatorRouting has servers behind a Service called at its endpoints: there is
	// no kube-proxy, so that the addresses of Services lead nowhere.
	aggregatorRouting = "--enable-aggregator-routing"
)

// services are the gates, each with a certificate of the same name.
var services = []string{AuthnProcess, AuthzProcess, AdmissionProcess}

// programs are the names of the programs that Run needs beside it.
func (r *runner) programs() []string {
	programs := []string{programPrefix + GatewayProcess}
	for _, service := range services {
		programs = append(programs, programPrefix+service)
	}
	if r.Controllers {
		programs = append(programs, controllersProgram)
	}
	return programs
}

func (r *runner) etcd() supervise.Process {
	url := "https://" + r.ports.address(EtcdProcess)
	return r.process(EtcdProcess, EtcdProcess, r.EtcdCommand[0], r.EtcdCommand[1:], []string{
		"--name=trigate",
		"--data-dir=" + r.layout.etcd(),
		"--listen-client-urls=" + url,
		"--advertise-client-urls=" + url,
		"--cert-file=" + r.pki.Cert(pki.EtcdServer),
		"--key-file=" + r.pki.Key(pki.EtcdServer),
		"--trusted-ca-file=" + r.pki.Cert(pki.EtcdCA),
		"--client-cert-auth",
	})
}

// services are all replicas of the gates.
func (r *runner) services() []supervise.Process {
	own := map[string][]string{
		AuthnProcess: {
			r.endpoint(AuthzProcess),
			"--service-account-issuer=" + issuer,
			"--service-account-key-file=" + r.pki.ServiceAccountPublicKey(),
			"--service-account-signing-key-file=" + r.pki.ServiceAccountKey(),
			"--enable-bootstrap-token-auth",
		},
		AuthzProcess: {
			r.endpoint(AuthnProcess),
			"--authorization-mode=Node,RBAC",
		},
		AdmissionProcess: {
			r.endpoint(AuthnProcess),
			r.endpoint(AuthzProcess),
			"--enable-admission-plugins=NodeRestriction",
			aggregatorRouting,
		},
	}
	var processes []supervise.Process
	for _, service := range services {
		for _, name := range replicas(service, r.Replicas) {
			shared := []string{
				"--listen-address=" + r.ports.address(name),
				"--tls-cert-file=" + r.pki.Cert(pki.Name(service)),
				"--tls-private-key-file=" + r.pki.Key(pki.Name(service)),
				"--peer-ca-file=" + r.pki.Cert(pki.GatesCA),
				"--client-ca-file=" + r.pki.Cert(pki.ClusterCA),
				"--kubeconfig=" + r.layout.processKubeconfig(name),
			}
			processes = append(processes, r.trigate(service, name, slices.Concat(shared, own[service])))
		}
	}
	return processes
}

// gateways are all gateways. They differ in their port only.
func (r *runner) gateways() []supervise.Process {
	var processes []supervise.Process
	for _, name := range replicas(GatewayProcess, r.Gateways) {
		processes = append(processes, r.trigate(GatewayProcess, name, slices.Concat(
			r.servingArgs(name), r.storageArgs(), r.identityArgs(), r.gateArgs())))
	}
	return processes
}

func (r *runner) servingArgs(name string) []string {
	return []string{
		"--bind-address=" + loopback,
		"--secure-port=" + strconv.Itoa(r.ports[name]),
		"--tls-cert-file=" + r.pki.Cert(pki.APIServer),
		"--tls-private-key-file=" + r.pki.Key(pki.APIServer),
		"--service-cluster-ip-range=" + pki.DefaultServiceCIDR.String(),
		// Nothing reaches the loopback address by way of the kubernetes Service, and
		// Endpoints may not hold it: upstream refuses it as the address to advertise
		// unless nobody writes these Endpoints. Without an address upstream takes that
		// of a network interface, which a machine need not have.
		"--advertise-address=" + loopback,
		"--endpoint-reconciler-type=none",
		"--allow-privileged",
		// Without it watches are not told to end, and the gateway waits for its
		// clients (the services watch all the time) for the minute that requests have.
		"--shutdown-watch-termination-grace-period=5s",
	}
}

func (r *runner) storageArgs() []string {
	return []string{
		"--etcd-servers=https://" + r.ports.address(EtcdProcess),
		"--etcd-cafile=" + r.pki.Cert(pki.EtcdCA),
		"--etcd-certfile=" + r.pki.Cert(pki.EtcdClient),
		"--etcd-keyfile=" + r.pki.Key(pki.EtcdClient),
	}
}

// identityArgs say whom the gateway believes, and as whom it calls others.
func (r *runner) identityArgs() []string {
	return []string{
		"--client-ca-file=" + r.pki.Cert(pki.ClusterCA),
		"--service-account-issuer=" + issuer,
		"--requestheader-client-ca-file=" + r.pki.Cert(pki.FrontProxyCA),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + r.pki.Cert(pki.FrontProxyClient),
		"--proxy-client-key-file=" + r.pki.Key(pki.FrontProxyClient),
		aggregatorRouting,
		"--kubelet-client-certificate=" + r.pki.Cert(pki.KubeletClient),
		"--kubelet-client-key=" + r.pki.Key(pki.KubeletClient),
		"--kubelet-preferred-address-types=InternalIP",
	}
}

// gateArgs say how the gateway reaches the services.
func (r *runner) gateArgs() []string {
	args := []string{
		"--gates-ca-file=" + r.pki.Cert(pki.GatesCA),
		"--gates-client-cert-file=" + r.pki.Cert(pki.Gateway),
		"--gates-client-key-file=" + r.pki.Key(pki.Gateway),
	}
	for _, service := range services {
		args = append(args, r.endpoint(service))
	}
	return args
}

// controllers is the stock kube-controller-manager. It has no
// --service-account-private-key-file: that key is authn's alone, and is needed for
// nothing but the Secrets with tokens that never expire, which Kubernetes no
// longer makes by itself either. The controller that fills such Secrets on demand
// (serviceaccount-token) is off without it. Each controller gets its own token
// from the API, by TokenRequest.
func (r *runner) controllers() supervise.Process {
	kubeconfig := r.layout.processKubeconfig(ControllersProcess)
	return r.process(ControllersProcess, ControllersProcess, filepath.Join(r.ProgramDir, controllersProgram), nil, []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--use-service-account-credentials",
		// As kubeadm does: these two are for bootstrap tokens, which authn accepts.
		"--controllers=*,bootstrap-signer-controller,token-cleaner-controller",
		"--root-ca-file=" + r.pki.Cert(pki.ClusterCA),
		"--cluster-signing-cert-file=" + r.pki.Cert(pki.ClusterCA),
		"--cluster-signing-key-file=" + r.pki.Key(pki.ClusterCA),
		"--leader-elect=false", // there is one
		"--bind-address=" + loopback,
		"--secure-port=0", // nobody asks it
	})
}

// trigate is a process of a program of ours.
func (r *runner) trigate(kind, name string, args []string) supervise.Process {
	return r.process(kind, name, filepath.Join(r.ProgramDir, programPrefix+kind), nil, args)
}

func (r *runner) process(kind, name, path string, first, args []string) supervise.Process {
	return supervise.Process{
		Name:    name,
		Path:    path,
		Args:    slices.Concat(first, override(args, r.ExtraArgs[kind])),
		LogFile: r.layout.log(name),
		PIDFile: r.layout.pid(name),
	}
}

// endpoint is the flag that says where all replicas of a service are.
func (r *runner) endpoint(service string) string {
	var addresses []string
	for _, name := range replicas(service, r.Replicas) {
		addresses = append(addresses, r.ports.address(name))
	}
	return "--" + service + "-endpoint=" + strings.Join(addresses, ",")
}

// gatewayURL is where the i-th gateway serves the Kubernetes API, counted from 1.
func (r *runner) gatewayURL(i int) string {
	return "https://" + r.ports.address(replica(GatewayProcess, i))
}

// override appends extra arguments, and leaves out of args the flags that are
// among them: a flag that takes a list would otherwise get both lists.
func override(args, extra []string) []string {
	given := map[string]bool{}
	for _, arg := range extra {
		if name := flagName(arg); name != "" {
			given[name] = true
		}
	}
	kept := slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return given[flagName(arg)] })
	return append(kept, extra...)
}

// flagName is the name of the flag that an argument sets, "" if it sets none. Of
// the spellings that Kubernetes and etcd take as equal, it is one.
func flagName(arg string) string {
	name, ok := strings.CutPrefix(arg, "-")
	if !ok {
		return ""
	}
	name, _, _ = strings.Cut(strings.TrimPrefix(name, "-"), "=")
	return strings.ReplaceAll(name, "_", "-")
}
