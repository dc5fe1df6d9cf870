package rest

import "net/http"

// Status is how the gates are, as seen from one gateway.
type Status struct {
	// Version is the gateway's.
	Version string `json:"version"`
	// Gates are authn, authz and admission, in this order.
	Gates []Gate `json:"gates"`
}

// Gate is how one gate is.
type Gate struct {
	// Name is authn, authz or admission.
	Name string `json:"name"`
	// Endpoint is what the gateway was told, Target the gRPC target that it stands for.
	Endpoint string `json:"endpoint"`
	Target   string `json:"target"`
	// Ready is true if requests are decided.
	Ready bool `json:"ready"`
	// State is the connection's (READY, CONNECTING, TRANSIENT_FAILURE, IDLE, SHUTDOWN).
	State string `json:"state"`
	// Reason says why the gate is not ready. Left out if it is.
	Reason string `json:"reason,omitempty"`
	// Replicas are the addresses that the endpoint was last resolved to.
	Replicas []Replica `json:"replicas"`
	// Configuration is a digest of the configuration in force, as the gate's stream told
	// last. Left out if it has told nothing.
	Configuration string `json:"configuration,omitempty"`
	// Stream is the stream by which the gateway hears of changes. Left out for a gate
	// without one.
	Stream *Stream `json:"stream,omitempty"`
	// Cache is what the gateway keeps of the gate's answers. Left out if nothing is kept.
	Cache *Cache `json:"cache,omitempty"`
}

// Replica is one address of a gate.
type Replica struct {
	// Address is host:port.
	Address string `json:"address"`
	// Health is SERVING, NOT_SERVING, another word of grpc.health.v1, or UNREACHABLE.
	Health string `json:"health"`
}

// Stream is how a stream of changes is.
type Stream struct {
	// Following is true if the gate tells of changes as they happen. While it is not,
	// the cache is not used.
	Following bool `json:"following"`
	// AgeSeconds is how long ago the gate last said so. -1 if it does not follow.
	AgeSeconds float64 `json:"ageSeconds"`
}

// Cache is what is kept of a gate's answers.
type Cache struct {
	// Entries is how many answers are kept, Bytes about how much memory they take.
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
	// Hits and Misses count the questions that the cache could answer, and could not.
	Hits   uint64 `json:"hits"`
	Misses uint64 `json:"misses"`
	// Bypassed counts the questions that were asked since there was no stream to trust
	// the cache by. They are not among the misses.
	Bypassed uint64 `json:"bypassed"`
}

func (h *Handler) serveStatus(w http.ResponseWriter, req *http.Request, _ map[string]string) {
	w.Header().Set("Cache-Control", "no-store")
	h.write(w, req, http.StatusOK, h.cfg.Status(req.Context()))
}
