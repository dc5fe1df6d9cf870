package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/trigate/trigate/deploy/test/framework"
)

const (
	// nodeAddress is where node-up.sh has the node, and so its node ports.
	nodeAddress = "10.213.0.2"
	// nodeName is what the node is called, by default.
	nodeName = "node1"
	// upTimeout bounds how long the node and its images may take.
	upTimeout = 5 * time.Minute
)

// commands are what the node's scripts call, by the Debian package that has it.
var commands = map[string]string{
	"containerd": "containerd", "ctr": "containerd", "runc": "runc", "iptables": "iptables",
	"socat": "socat", "conntrack": "conntrack", "sysctl": "procps",
	"/usr/lib/cni/ptp": "containernetworking-plugins",
}

// tools are where the node's scripts and the stock programs are.
type tools struct {
	scripts string // node-up.sh and the like
	kube    string // kubelet and the like
	images  []string
}

// requirements fails the test, with all that is missing, where no node can run.
func requirements(t *testing.T) tools {
	t.Helper()
	var missing []string
	if os.Getuid() != 0 {
		missing = append(missing, "these tests make namespaces and mounts: run them as root")
	}
	for command, pkg := range commands {
		if _, err := exec.LookPath(command); err != nil {
			missing = append(missing, fmt.Sprintf("%s is missing: apt-get install %s", command, pkg))
		}
	}
	root, err := framework.Root()
	if err != nil {
		t.Fatal(err)
	}
	bin := os.Getenv("TRIGATE_BIN")
	if bin == "" {
		bin = filepath.Join(root, "bin")
		t.Setenv("TRIGATE_BIN", bin)
	}
	found := tools{scripts: os.Getenv("NODE_TOOLS"), kube: filepath.Join(bin, "kube")}
	if found.scripts == "" {
		found.scripts = filepath.Join(root, "..", "shared", "tools")
	}
	for _, path := range []string{
		filepath.Join(found.scripts, "node-up.sh"), filepath.Join(found.kube, "kubelet"), filepath.Join(found.kube, "coredns"),
		filepath.Join(bin, "trigate-pki"), filepath.Join(bin, "kubectl"),
	} {
		if _, err := os.Stat(path); err != nil {
			missing = append(missing, fmt.Sprintf("%v (NODE_TOOLS names the scripts, TRIGATE_BIN the programs; make test-node builds them)", err))
		}
	}
	if found.images, err = filepath.Glob(filepath.Join(bin, "images", "*.tar")); err != nil || len(found.images) == 0 {
		missing = append(missing, fmt.Sprintf("no images in %s: make images builds them", filepath.Join(bin, "images")))
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		t.Fatalf("these tests need a real node:\n%s", strings.Join(missing, "\n"))
	}
	return found
}

// startNode brings up the node for the API server of a kubeconfig, with env for
// node-up.sh, and takes it down at the end of the test.
func (tools tools) startNode(t *testing.T, kubeconfig string, env ...string) {
	t.Helper()
	root, err := framework.Root()
	if err != nil {
		t.Fatal(err)
	}
	// One place, so that what an earlier run has left is taken down first. It is outside
	// of the test's folder since paths of sockets are short.
	env = append(os.Environ(), append([]string{
		"KUBECONFIG=" + kubeconfig,
		"KUBE_BIN=" + tools.kube,
		"DNS_BIN=" + filepath.Join(tools.kube, "coredns"),
		"NODE_DIR=" + filepath.Join(root, "bin", "node"),
		"CONTROLLERS=0",
	}, env...)...)
	down := func() error { return script(tools.scripts, "node-down.sh", env) }
	if err := down(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			logTails(t, filepath.Join(root, "bin", "node"))
		}
		if err := down(); err != nil {
			t.Error(err)
		}
	})
	if err := script(tools.scripts, "node-up.sh", env); err != nil {
		t.Fatal(err)
	}
}

// logTails shows how the logs of a node end.
func logTails(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{"kubelet.log", "containerd.log"} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			t.Logf("%s ends with:\n%s", name, content[max(0, len(content)-2<<10):])
		}
	}
}

// script runs a script of the node's. Its output goes to files, since the daemons that it
// starts would hold a pipe open.
func script(dir, name string, env []string) error {
	log, err := os.CreateTemp("", name+".*.log")
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(log.Close(), os.Remove(log.Name())) }()
	ctx, cancel := context.WithTimeout(context.Background(), upTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, name))
	cmd.Env, cmd.Stdout, cmd.Stderr = env, log, log
	if err := cmd.Run(); err != nil {
		content, _ := os.ReadFile(log.Name())
		return fmt.Errorf("%s: %w\n%s", name, err, content)
	}
	return nil
}

// host is a stock Kubernetes cluster of one node, which runs Trigate's pods.
type host struct {
	*framework.Cluster
	client kubernetes.Interface
	tools  tools
	dir    string
}

// startHost starts the host cluster for a test, with Trigate's images on its node.
func startHost(t *testing.T) *host {
	t.Helper()
	tools := requirements(t)
	cluster := framework.StartStock(t, framework.StockOptions{})
	startKube(t, tools, "kube-scheduler", "--kubeconfig="+cluster.Kubeconfig, "--leader-elect=false", "--secure-port=0")
	tools.startNode(t, cluster.Kubeconfig, "NODE_IMAGES="+strings.Join(tools.images, " "))
	return &host{Cluster: cluster, client: cluster.Client(t), tools: tools, dir: t.TempDir()}
}

// startKube runs one of the stock programs until the end of the test.
func startKube(t *testing.T, tools tools, name string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(tools.kube, name), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // however it ends
		_ = log.Close()
	})
}
