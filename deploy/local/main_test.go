package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
)

// deadline bounds each wait of the tests, which end much sooner when all is well.
const deadline = 60 * time.Second

// processes are what runs by default.
var processes = []string{"admission", "authn", "authz", "controllers", "etcd", "gateway"}

func TestRunAndStop(t *testing.T) {
	l := newLocal(t)
	l.start("--dir", l.dir, "--port", "0")
	ready := l.waitForLine("^ready: ")
	if want := "ready: KUBECONFIG=" + filepath.Join(l.dir, "kubeconfig"); ready != want {
		t.Errorf("printed %q, want %q", ready, want)
	}

	if got := l.running(); !slices.Equal(got, processes) {
		t.Errorf("running are %v, want %v", got, processes)
	}
	for _, name := range processes {
		if _, err := os.Stat(filepath.Join(l.dir, "logs", name+".log")); err != nil {
			t.Error(err)
		}
	}
	if err := l.ask(filepath.Join(l.dir, "kubeconfig")); err != nil {
		t.Errorf("/readyz with the kubeconfig: %v", err)
	}

	l.args("kube-controller-manager") // it listens to signals
	l.stop(syscall.SIGTERM)
	l.checkNothingLeft()
	ends := l.events("end")
	if len(ends) != 5 || ends[0] != "kube-controller-manager" || ends[1] != "trigate-gateway" {
		t.Errorf("ended in the order %v, want kube-controller-manager, trigate-gateway, then the services", ends)
	}
	if !strings.Contains(l.log("etcd"), "closed etcd server") {
		t.Errorf("etcd was not closed:\n%s", l.log("etcd"))
	}
}

// TestDataStays starts twice on one directory, from another working directory and
// by a relative path, with SIGINT between.
func TestDataStays(t *testing.T) {
	l := newLocal(t)
	t.Chdir(filepath.Dir(l.dir))
	l.start("--dir", filepath.Base(l.dir), "--port", "0")
	if got, want := l.waitForLine("^ready: "), "ready: KUBECONFIG="+filepath.Join(l.dir, "kubeconfig"); got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
	if _, err := l.etcdClient().Put(t.Context(), "key", "value"); err != nil {
		t.Fatal(err)
	}
	kubeconfig := read(t, filepath.Join(l.dir, "kubeconfig"))
	l.stop(syscall.SIGINT)
	l.checkNothingLeft()

	l.start("--dir", l.dir, "--port", "0")
	l.waitForLine("^ready: ")
	got, err := l.etcdClient().Get(t.Context(), "key")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "value" {
		t.Errorf("etcd has %v, want the value of the first run", got.Kvs)
	}
	if diff := cmp.Diff(kubeconfig, read(t, filepath.Join(l.dir, "kubeconfig"))); diff != "" {
		t.Errorf("the kubeconfig changed (-first +second):\n%s", diff)
	}
}

func TestReplicas(t *testing.T) {
	l := newLocal(t)
	l.start("--dir", l.dir, "--port", "0", "--gateways=2", "--replicas=3", "--controllers=false")
	l.waitForLine("^ready: ")
	want := []string{
		"admission", "admission.2", "admission.3", "authn", "authn.2", "authn.3", "authz", "authz.2", "authz.3",
		"etcd", "gateway", "gateway.2",
	}
	if diff := cmp.Diff(want, l.running()); diff != "" {
		t.Errorf("running are (-want +got):\n%s", diff)
	}
	servers := map[string]string{}
	for _, name := range []string{
		"kubeconfig", "kubeconfig.2",
		"pki/authz.kubeconfig", "pki/authz.2.kubeconfig", "pki/authz.3.kubeconfig",
	} {
		config, err := clientcmd.LoadFromFile(filepath.Join(l.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		servers[name] = config.Clusters["trigate"].Server
	}
	first, second := servers["kubeconfig"], servers["kubeconfig.2"]
	if first == second {
		t.Errorf("both kubeconfigs name %s", first)
	}
	if diff := cmp.Diff(map[string]string{
		"kubeconfig": first, "kubeconfig.2": second,
		"pki/authz.kubeconfig": first, "pki/authz.2.kubeconfig": second, "pki/authz.3.kubeconfig": first,
	}, servers); diff != "" {
		t.Errorf("servers (-want +got):\n%s", diff)
	}
	for _, name := range []string{"kubeconfig", "kubeconfig.2"} {
		if err := l.ask(filepath.Join(l.dir, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	l.stop(syscall.SIGTERM)
	l.checkNothingLeft()
}

func TestChildrenAreRestarted(t *testing.T) {
	l := newLocal(t)
	l.start("--dir", l.dir, "--port", "0")
	l.waitForLine("^ready: ")
	for _, name := range processes {
		before := l.pid(name)
		if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		l.waitForLine("^" + name + `: died \(signal: killed\) after .*, restarting in 200ms`)
		l.waitForLine(fmt.Sprintf("^%s: started, process %d,", name, l.waitForNewPID(name, before)))
	}
	// With the same ports as before everything comes together again.
	l.eventually("the gateway is ready again", func() bool { return l.ask(filepath.Join(l.dir, "kubeconfig")) == nil })
	l.stop(syscall.SIGTERM)
	l.checkNothingLeft()
}

// TestKilledRunner kills the runner itself: its children die with it, and another
// one takes over the directory.
func TestKilledRunner(t *testing.T) {
	l := newLocal(t)
	l.start("--dir", l.dir, "--port", "0")
	l.waitForLine("^ready: ")
	kubeconfig := read(t, filepath.Join(l.dir, "kubeconfig"))
	if err := l.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-l.ended
	l.eventually("all children are gone", func() bool { return len(l.processesOfDir()) == 0 })

	l.start("--dir", l.dir, "--port", "0")
	l.waitForLine("^ready: ")
	if got := l.running(); !slices.Equal(got, processes) {
		t.Errorf("running are %v, want %v", got, processes)
	}
	if diff := cmp.Diff(kubeconfig, read(t, filepath.Join(l.dir, "kubeconfig"))); diff != "" {
		t.Errorf("the kubeconfig changed (-first +second):\n%s", diff)
	}
	l.stop(syscall.SIGTERM)
	l.checkNothingLeft()
}

func TestStubbornChildIsKilled(t *testing.T) {
	l := newLocal(t)
	l.misbehave("trigate-authz.stubborn", "")
	l.start("--dir", l.dir, "--port", "0", "--stop-timeout=200ms")
	l.waitForLine("^ready: ")
	l.stop(syscall.SIGTERM)
	l.waitForLine("^authz: is still there, killing it$")
	l.checkNothingLeft()
}

func TestStopBeforeReady(t *testing.T) {
	l := newLocal(t)
	l.misbehave("trigate-authz.fail", "--kubeconfig: no such file")
	l.start("--dir", l.dir, "--port", "0")
	l.waitForLine("^authz: died")
	l.stop(syscall.SIGTERM)
	l.checkNothingLeft()
	if slices.ContainsFunc(l.lines(), func(line string) bool { return strings.HasPrefix(line, "ready:") }) {
		t.Errorf("printed ready: without authz")
	}
}

// TestMisconfiguredChild says why a child dies each time, and becomes ready once
// it does not.
func TestMisconfiguredChild(t *testing.T) {
	l := newLocal(t)
	l.misbehave("trigate-authz.fail", "--authorization-config /x: unknown field \"a\"")
	l.start("--dir", l.dir, "--port", "0")
	for _, pause := range []string{"200ms", "400ms", "800ms"} {
		l.waitForLine(`^authz: died \(exit status 1\) after .*, restarting in ` + pause + `: --authorization-config /x: unknown field "a"$`)
	}
	if err := os.Remove(filepath.Join(l.fakes, "trigate-authz.fail")); err != nil {
		t.Fatal(err)
	}
	l.waitForLine("^ready: ")
}

func TestPassThrough(t *testing.T) {
	l := newLocal(t)
	l.start("--dir", l.dir, "--port", "0",
		"--gateway-arg=--v=4", "--gateway-arg=--feature-gates=A=true,B=false", "--gateway-arg=--allow-privileged=false",
		"--authn-arg=--authn-flag", "--authz-arg=--authorization-mode=AlwaysAllow", "--admission-arg=--x=--y",
		"--etcd-arg=--log-level=debug", "--controllers-arg=--controllers=*", "--controllers-arg=--kube-api-qps=100")
	l.waitForLine("^ready: ")
	for _, tt := range []struct {
		program    string
		want, not  []string
		wantAtLast string
	}{
		{
			program: "trigate-gateway", want: []string{"--bind-address=127.0.0.1"}, not: []string{"--allow-privileged"},
			wantAtLast: "--v=4 --feature-gates=A=true,B=false --allow-privileged=false",
		},
		{program: "trigate-authn", want: []string{"--enable-bootstrap-token-auth"}, wantAtLast: "--authn-flag"},
		{program: "trigate-authz", not: []string{"--authorization-mode=Node,RBAC"}, wantAtLast: "--authorization-mode=AlwaysAllow"},
		{program: "trigate-admission", want: []string{"--enable-admission-plugins=NodeRestriction"}, wantAtLast: "--x=--y"},
		{
			program: "kube-controller-manager", want: []string{"--leader-elect=false"},
			not: []string{"--controllers=*,bootstrap-signer-controller,token-cleaner-controller"}, wantAtLast: "--controllers=* --kube-api-qps=100",
		},
	} {
		args := l.args(tt.program)
		for _, want := range tt.want {
			if !slices.Contains(args, want) {
				t.Errorf("%s has no %s: %v", tt.program, want, args)
			}
		}
		for _, not := range tt.not {
			if slices.Contains(args, not) {
				t.Errorf("%s has %s: %v", tt.program, not, args)
			}
		}
		if !strings.HasSuffix(strings.Join(args, " "), " "+tt.wantAtLast) {
			t.Errorf("arguments of %s end in %v, want %s", tt.program, args, tt.wantAtLast)
		}
	}
	if !strings.Contains(l.log("etcd"), "\tdebug\t") {
		t.Errorf("etcd does not log what --log-level=debug asks for")
	}
}

// TestSigningKeyIsAuthnsAlone looks at all arguments for the key.
func TestSigningKeyIsAuthnsAlone(t *testing.T) {
	l := newLocal(t)
	l.start("--dir", l.dir, "--port", "0")
	l.waitForLine("^ready: ")
	key := filepath.Join(l.dir, "pki", "sa.key")
	for _, program := range []string{"trigate-gateway", "trigate-authn", "trigate-authz", "trigate-admission", "kube-controller-manager"} {
		if got, want := strings.Contains(strings.Join(l.args(program), " "), key), program == "trigate-authn"; got != want {
			t.Errorf("%s is given the signing key: %v, want %v", program, got, want)
		}
	}
}

func TestSecondRunnerIsRefused(t *testing.T) {
	l := newLocal(t)
	l.start("--dir", l.dir, "--port", "0")
	l.waitForLine("^ready: ")
	got := l.fail("--dir", l.dir, "--port", "0")
	if want := fmt.Sprintf("trigate-local: --dir %s: in use by another trigate-local, process %d\n", l.dir, l.cmd.Process.Pid); got != want {
		t.Errorf("said %q, want %q", got, want)
	}
	if got := l.running(); !slices.Equal(got, processes) {
		t.Errorf("after that running are %v, want %v", got, processes)
	}
}

func TestBadInput(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	port := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
	for _, tt := range []struct {
		name   string
		before func(t *testing.T, l *local)
		args   []string
		want   string // with DIR for the directory and BIN for that of the programs
	}{
		{name: "a port in use", args: []string{"--port", port}, want: "--port " + port + ": address already in use"},
		{name: "no port", args: []string{"--port", "70000"}, want: "--port 70000: not a port, which is 0 to 65535"},
		{name: "an unknown flag", args: []string{"--gatways=2"}, want: "unknown flag: --gatways"},
		{name: "an argument", args: []string{"up"}, want: `"up": there are only flags; see --help`},
		{name: "two mistakes", args: []string{"--gateways=0", "--replicas=10"}, want: "--gateways 0: not 1 to 9; --replicas 10: not 1 to 9"},
		{name: "no directory", args: []string{"--dir="}, want: "--dir: it is empty"},
		{name: "not a flag", args: []string{"--authz-arg=v=4"}, want: "--authz-arg v=4: not a flag; write --authz-arg=--NAME=VALUE"},
		{
			name:   "a file for a directory",
			before: func(t *testing.T, l *local) { write(t, l.dir, "") },
			want:   "--dir: mkdir DIR: not a directory",
		},
		{
			name: "a broken key",
			before: func(t *testing.T, l *local) {
				if err := os.MkdirAll(filepath.Join(l.dir, "pki"), 0o700); err != nil {
					t.Fatal(err)
				}
				write(t, filepath.Join(l.dir, "pki", "gates-ca.key"), "x")
			},
			want: "reading key DIR/pki/gates-ca.key: data does not contain a valid RSA or ECDSA private key",
		},
		{
			name: "no program",
			before: func(t *testing.T, l *local) {
				if err := os.Remove(filepath.Join(l.programs, "trigate-authz")); err != nil {
					t.Fatal(err)
				}
			},
			want: `looking for the program trigate-authz: stat BIN/trigate-authz: no such file or directory ("make build" builds it)`,
		},
		{
			name: "no controllers",
			before: func(t *testing.T, l *local) {
				if err := os.Remove(filepath.Join(l.programs, "kube-controller-manager")); err != nil {
					t.Fatal(err)
				}
			},
			want: `looking for the program kube-controller-manager: stat BIN/kube-controller-manager: no such file or directory ("make build" builds it, and --controllers=false does without it)`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLocal(t)
			if tt.before != nil {
				tt.before(t, l)
			}
			got := l.fail(append([]string{"--dir", l.dir, "--port", "0"}, tt.args...)...)
			want := "trigate-local: " + strings.NewReplacer("DIR", l.dir, "BIN", l.programs).Replace(tt.want) + "\n"
			if tt.name == "not a flag" { // whose hint is not the directory
				want = "trigate-local: " + tt.want + "\n"
			}
			if got != want {
				t.Errorf("said %q, want %q", got, want)
			}
			if events := l.events("start"); len(events) > 0 {
				t.Errorf("started %v", events)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	l := newLocal(t)
	output, err := exec.Command(filepath.Join(l.programs, "trigate-local"), "--help").CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Control plane flags:\n", "--dir DIR", "--port PORT", "--gateways N", "--replicas N", "--controllers",
		"Pass-through flags:\n", "--gateway-arg FLAG", "--authn-arg FLAG", "--authz-arg FLAG", "--admission-arg FLAG",
	} {
		if !bytes.Contains(output, []byte(want)) {
			t.Errorf("--help does not say %q:\n%s", want, output)
		}
	}
	if bytes.Contains(output, []byte("Available Commands")) {
		t.Errorf("--help shows the hidden command:\n%s", output)
	}
}
