package serve

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/klog/v2"
)

// Health is what a server says of its readiness, by grpc.health.v1 and at
// /readyz. It is the AND of its parts: a server is SERVING when there is at
// least one part and each one is ready. It is safe for concurrent use.
type Health struct {
	server *health.Server

	// mu guards what follows.
	mu       sync.Mutex
	services []string
	parts    map[string]part
	draining bool
	serving  bool
}

// part is one thing that must be ready.
type part struct {
	ready  bool
	detail string
}

// newHealth returns the health of a server whose named parts are not ready.
func newHealth(parts []string) *Health {
	h := &Health{server: health.NewServer(), services: []string{""}, parts: map[string]part{}}
	for _, name := range parts {
		h.parts[name] = part{detail: "not ready yet"}
	}
	h.server.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	return h
}

// Set says whether a part is ready, and in a few words why not, or what is not as
// it should be though the part is ready. A part that was not announced in
// Config.Parts counts from its first Set on.
func (h *Health) Set(name string, ready bool, detail string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if old, ok := h.parts[name]; !ok || old.ready != ready {
		klog.Background().Info("Readiness changed", "part", name, "ready", ready, "detail", detail)
	}
	h.parts[name] = part{ready: ready, detail: detail}
	h.publishLocked()
}

// Ready returns nil if the server is SERVING, else an error that names the
// parts that are not ready.
func (h *Health) Ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.draining {
		return errDraining
	}
	if len(h.parts) == 0 {
		return errNotStarted
	}
	var missing []string
	for name, p := range h.parts {
		if !p.ready {
			missing = append(missing, fmt.Sprintf("%s: %s", name, p.detail))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return fmt.Errorf("not ready: %s", strings.Join(missing, "; "))
}

// report returns whether all is ready, and a line for each part as
// kube-apiserver's /readyz?verbose has it.
func (h *Health) report() (bool, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var lines []string
	for name, p := range h.parts {
		switch {
		case !p.ready:
			lines = append(lines, fmt.Sprintf("[-]%s failed: %s", name, p.detail))
		case p.detail != "":
			lines = append(lines, fmt.Sprintf("[+]%s ok, but %s", name, p.detail))
		default:
			lines = append(lines, fmt.Sprintf("[+]%s ok", name))
		}
	}
	slices.Sort(lines)
	if h.draining {
		lines = append(lines, "[-]shutdown failed: "+errDraining.Error())
	}
	verdict := "readyz check passed"
	if !h.serving {
		verdict = "readyz check failed"
	}
	return h.serving, strings.Join(append(lines, verdict), "\n") + "\n"
}

// announce publishes the health under the names of the server's services too.
func (h *Health) announce(services []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.services = append([]string{""}, services...)
	h.publishLocked()
}

// drain reports NOT_SERVING from now on, whatever Set says.
func (h *Health) drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
	h.publishLocked()
}

func (h *Health) publishLocked() {
	h.serving = len(h.parts) > 0 && !h.draining
	for _, p := range h.parts {
		h.serving = h.serving && p.ready
	}
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if h.serving {
		status = healthpb.HealthCheckResponse_SERVING
	}
	for _, service := range h.services {
		h.server.SetServingStatus(service, status)
	}
}
