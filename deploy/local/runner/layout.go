package runner

import (
	"fmt"
	"path/filepath"
)

// layout is where things are under the directory.
type layout struct {
	dir string
}

func (l layout) pki() string       { return filepath.Join(l.dir, "pki") }
func (l layout) etcd() string      { return filepath.Join(l.dir, "etcd") }
func (l layout) logs() string      { return filepath.Join(l.dir, "logs") }
func (l layout) pids() string      { return filepath.Join(l.dir, "pids") }
func (l layout) portsFile() string { return filepath.Join(l.dir, "ports.json") }
func (l layout) lockFile() string  { return filepath.Join(l.dir, "trigate-local.pid") }

func (l layout) log(process string) string { return filepath.Join(l.logs(), process+".log") }
func (l layout) pid(process string) string { return filepath.Join(l.pids(), process+".pid") }

// adminKubeconfig is the operator's, for the i-th gateway, counted from 1.
func (l layout) adminKubeconfig(i int) string {
	return filepath.Join(l.dir, replica("kubeconfig", i))
}

// processKubeconfig is that of a process, beside the certificates that it names.
func (l layout) processKubeconfig(process string) string {
	return filepath.Join(l.pki(), process+".kubeconfig")
}

// replica is the name of the i-th of several, counted from 1; the first has the
// bare name.
func replica(name string, i int) string {
	if i == 1 {
		return name
	}
	return fmt.Sprintf("%s.%d", name, i)
}

// replicas are the names of all of several.
func replicas(name string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = replica(name, i+1)
	}
	return names
}
