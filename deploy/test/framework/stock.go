package framework

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/trigate/trigate/deploy/pki"
)

// stockIssuer is the issuer that the local runner gives to Trigate.
const stockIssuer = "https://kubernetes.default.svc.cluster.local"

var ctxBackground = context.Background()

// StockOptions vary how stock kube-apiserver is started.
type StockOptions struct {
	// Args are more arguments of kube-apiserver.
	Args []string
	// Dir holds all its files; a folder of the test's if it is empty. What a control
	// plane that has been stopped has left there is its data.
	Dir string
}

// StartStock starts stock kube-apiserver, with etcd and kube-controller-manager,
// for one test.
func StartStock(tb testing.TB, opts StockOptions) *Cluster {
	tb.Helper()
	return cleanedUp(tb)(startStock(dirOf(tb, opts.Dir, Stock), opts))
}

// startStock runs the same programs with the same flags as the local runner, but
// for kube-apiserver in the place of gateway and services.
func startStock(dir string, opts StockOptions) (_ *Cluster, err error) {
	layout, err := pki.Ensure(ctxBackground, pki.Config{Dir: filepath.Join(dir, "pki")})
	if err != nil {
		return nil, err
	}
	policy, err := writeAuditPolicy(dir)
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		Name:       Stock,
		Dir:        dir,
		Kubeconfig: filepath.Join(dir, "kubeconfig"),
		AuditLog:   filepath.Join(dir, "audit.log"),
		PKI:        layout,
	}
	var running []*process
	c.stop = func() error {
		var errs []error
		for i := len(running) - 1; i >= 0; i-- {
			errs = append(errs, running[i].stop())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.stop())
		}
	}()
	launch := func(program string, args ...string) error {
		p, err := start(program, filepath.Join(dir, "logs", program+".log"), nil, args...)
		if err == nil {
			running = append(running, p)
		}
		return err
	}

	etcdPort, err := freePort()
	if err != nil {
		return nil, err
	}
	apiPort, err := freePort()
	if err != nil {
		return nil, err
	}
	etcdURL := "https://127.0.0.1:" + strconv.Itoa(etcdPort)
	apiURL := "https://127.0.0.1:" + strconv.Itoa(apiPort)
	if err := writeStockKubeconfigs(c, apiURL); err != nil {
		return nil, err
	}
	if err := launch("trigate-local", append([]string{"etcd"}, etcdArgs(dir, etcdURL, layout)...)...); err != nil {
		return nil, err
	}
	args := append(stockArgs(layout, etcdURL, apiPort), "--audit-policy-file="+policy, "--audit-log-path="+c.AuditLog, auditLogMaxSize)
	if err := launch("kube-apiserver", append(args, opts.Args...)...); err != nil {
		return nil, err
	}
	// kube-controller-manager ends if the API does not answer it within ten seconds.
	if err := c.waitReady(running); err != nil {
		return nil, err
	}
	return c, launch("kube-controller-manager", controllerArgs(c)...)
}

// waitReady waits for /readyz, or for the end of a process.
func (c *Cluster) waitReady(running []*process) error {
	config, err := c.config()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctxBackground)
	defer cancel(nil)
	err = poll(ctx, Timeout, func() error {
		for _, p := range running {
			if err := p.ended(); err != nil {
				cancel(err) // no use in waiting
				return err
			}
		}
		_, err := client.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	})
	if ended := context.Cause(ctx); ended != nil {
		return ended
	}
	return err
}

func writeStockKubeconfigs(c *Cluster, apiURL string) error {
	return errors.Join(
		c.PKI.WriteKubeconfig(pki.Kubeconfig{Path: c.Kubeconfig, Server: apiURL, Identity: pki.Admin, Embed: true}),
		c.PKI.WriteKubeconfig(pki.Kubeconfig{Path: controllersKubeconfig(c), Server: apiURL, Identity: pki.Controllers}),
	)
}

func controllersKubeconfig(c *Cluster) string {
	return filepath.Join(c.PKI.Dir, "controllers.kubeconfig")
}

func etcdArgs(dir, url string, layout *pki.Layout) []string {
	return []string{
		"--name=stock",
		"--data-dir=" + filepath.Join(dir, "etcd"),
		"--listen-client-urls=" + url,
		"--advertise-client-urls=" + url,
		"--cert-file=" + layout.Cert(pki.EtcdServer),
		"--key-file=" + layout.Key(pki.EtcdServer),
		"--trusted-ca-file=" + layout.Cert(pki.EtcdCA),
		"--client-cert-auth",
	}
}

func stockArgs(layout *pki.Layout, etcdURL string, port int) []string {
	return []string{
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(port),
		"--tls-cert-file=" + layout.Cert(pki.APIServer),
		"--tls-private-key-file=" + layout.Key(pki.APIServer),
		"--service-cluster-ip-range=" + pki.DefaultServiceCIDR.String(),
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none",
		"--allow-privileged",
		"--etcd-servers=" + etcdURL,
		"--etcd-cafile=" + layout.Cert(pki.EtcdCA),
		"--etcd-certfile=" + layout.Cert(pki.EtcdClient),
		"--etcd-keyfile=" + layout.Key(pki.EtcdClient),
		"--client-ca-file=" + layout.Cert(pki.ClusterCA),
		"--service-account-issuer=" + stockIssuer,
		"--service-account-key-file=" + layout.ServiceAccountPublicKey(),
		"--service-account-signing-key-file=" + layout.ServiceAccountKey(),
		"--enable-bootstrap-token-auth",
		"--requestheader-client-ca-file=" + layout.Cert(pki.FrontProxyCA),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + layout.Cert(pki.FrontProxyClient),
		"--proxy-client-key-file=" + layout.Key(pki.FrontProxyClient),
		"--enable-aggregator-routing",
		"--kubelet-client-certificate=" + layout.Cert(pki.KubeletClient),
		"--kubelet-client-key=" + layout.Key(pki.KubeletClient),
		"--kubelet-preferred-address-types=InternalIP",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
	}
}

func controllerArgs(c *Cluster) []string {
	kubeconfig := controllersKubeconfig(c)
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--use-service-account-credentials",
		"--controllers=*,bootstrap-signer-controller,token-cleaner-controller",
		"--root-ca-file=" + c.PKI.Cert(pki.ClusterCA),
		"--cluster-signing-cert-file=" + c.PKI.Cert(pki.ClusterCA),
		"--cluster-signing-key-file=" + c.PKI.Key(pki.ClusterCA),
		"--leader-elect=false",
		"--bind-address=127.0.0.1",
		"--secure-port=0",
	}
}

// freePort returns a port of this machine that nobody listens on. Another process
// may take it before it is used; the start then fails and says so.
func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("finding a free port: %w", err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	return port, listener.Close()
}
