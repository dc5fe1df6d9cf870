package runner

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestChoosePorts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ports.json")
	gateways, others := []string{"gateway", "gateway.2"}, []string{"etcd", "authz"}
	first := mustChoose(t, file, gateways, others, 0)
	seen := map[int]bool{}
	for name, port := range first {
		if port < firstFreePort || port > lastFreePort || seen[port] {
			t.Errorf("port of %s = %d of %v, want one of its own in %d-%d", name, port, first, firstFreePort, lastFreePort)
		}
		seen[port] = true
	}
	if len(seen) != 4 {
		t.Errorf("ports = %v, want four", first)
	}
	if diff := cmp.Diff(first, mustChoose(t, file, gateways, others, 0)); diff != "" {
		t.Errorf("the ports did not stay (-first +second):\n%s", diff)
	}

	listener, err := net.Listen("tcp", first.address("authz"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	third := mustChoose(t, file, gateways, others, 0)
	if third["authz"] == first["authz"] {
		t.Errorf("port of authz = %d, which is in use", third["authz"])
	}
	if third["etcd"] != first["etcd"] {
		t.Errorf("port of etcd = %d, want the one it had, %d", third["etcd"], first["etcd"])
	}
}

func TestChoosePortsAsked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ports.json")
	asked := mustChoose(t, filepath.Join(t.TempDir(), "other.json"), []string{"gateway"}, nil, 0)["gateway"]
	// What another process had is now the gateway's.
	if err := os.WriteFile(file, fmt.Appendf(nil, `{"etcd": %d}`, asked), 0o600); err != nil {
		t.Fatal(err)
	}
	got := mustChoose(t, file, []string{"gateway"}, []string{"etcd"}, asked)
	if got["gateway"] != asked || got["etcd"] == asked {
		t.Errorf("ports = %v, want %d for the gateway alone", got, asked)
	}

	listener, err := net.Listen("tcp", got.address("gateway"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	_, err = choosePorts(file, []string{"gateway"}, []string{"etcd"}, asked)
	if got, want := fmt.Sprint(err), fmt.Sprintf("--port %d: address already in use", asked); got != want {
		t.Errorf("choosePorts = %s, want %s", got, want)
	}
}

func TestChoosePortsSiblings(t *testing.T) {
	picker := &portPicker{taken: map[int]bool{}, free: func(port int) bool { return port != 7001 }}
	for _, step := range []struct {
		preferred int
		kept      bool
	}{{7000, true}, {7000, false}, {7001, false}, {7002, true}, {0, false}, {-1, false}, {65536, false}} {
		got, err := picker.pick(step.preferred)
		if err != nil || (got == step.preferred) != step.kept {
			t.Errorf("pick(%d) = %d, %v, want it kept: %v", step.preferred, got, err, step.kept)
		}
	}
}

func TestChoosePortsErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ports.json")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := choosePorts(file, []string{"gateway"}, nil, 0); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("choosePorts with a broken file = %v, want an error that names it", err)
	}
	picker := &portPicker{taken: map[int]bool{}, free: func(int) bool { return false }}
	if port, err := picker.pick(0); err == nil {
		t.Errorf("pick without a free port = %d", port)
	}
}

func mustChoose(t *testing.T, file string, gateways, others []string, asked int) ports {
	t.Helper()
	chosen, err := choosePorts(file, gateways, others, asked)
	if err != nil {
		t.Fatal(err)
	}
	return chosen
}
