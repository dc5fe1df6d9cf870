package client

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	restful "github.com/emicklei/go-restful/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/routes"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// OpenIDMetadata serves the discovery documents of the service-account issuer.
// Upstream's provider refuses to be made without keys, and would leave the
// documents out for as long as the process lives; this one waits for the keys,
// and is upstream's from then on.
type OpenIDMetadata struct {
	issuerURL, jwksURI, externalAddress string
	keys                                *PublicKeys

	// mu guards upstream, which is nil until there are keys.
	mu       sync.Mutex
	upstream serviceaccount.OpenIDMetadataProvider
}

var (
	_ serviceaccount.OpenIDMetadataProvider = (*OpenIDMetadata)(nil)
	_ serviceaccount.Listener               = (*OpenIDMetadata)(nil)
)

// NewOpenIDMetadata returns the documents for an issuer, with upstream's arguments
// and upstream's errors: an issuer that is no https URL, say. As upstream does, a
// caller logs the error and leaves the documents out.
func NewOpenIDMetadata(issuerURL, jwksURI, externalAddress string, keys *PublicKeys) (*OpenIDMetadata, error) {
	// With some key upstream can tell whether the rest is right.
	some, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating a key: %w", err)
	}
	trial, err := serviceaccount.StaticPublicKeysGetter([]any{&some.PublicKey})
	if err != nil {
		return nil, err
	}
	if _, err := serviceaccount.NewOpenIDMetadataProvider(issuerURL, jwksURI, externalAddress, trial); err != nil {
		return nil, err
	}
	m := &OpenIDMetadata{issuerURL: issuerURL, jwksURI: jwksURI, externalAddress: externalAddress, keys: keys}
	keys.AddListener(m)
	m.Enqueue()
	return m, nil
}

// Enqueue makes upstream's provider as soon as there are keys. That one listens
// to later changes by itself.
func (m *OpenIDMetadata) Enqueue() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.upstream != nil || !m.keys.Fetched() {
		return
	}
	upstream, err := serviceaccount.NewOpenIDMetadataProvider(m.issuerURL, m.jwksURI, m.externalAddress, m.keys)
	if err != nil {
		klog.Background().Error(err, "Cannot make the service-account issuer's discovery documents")
		return
	}
	m.upstream = upstream
}

func (m *OpenIDMetadata) provider() serviceaccount.OpenIDMetadataProvider {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.upstream
}

// GetConfigJSON returns the issuer's configuration, and nothing before there are
// keys.
func (m *OpenIDMetadata) GetConfigJSON() ([]byte, int) {
	if provider := m.provider(); provider != nil {
		return provider.GetConfigJSON()
	}
	return nil, 0
}

// GetKeysetJSON returns the issuer's keys, and nothing before there are any.
func (m *OpenIDMetadata) GetKeysetJSON() ([]byte, int) {
	if provider := m.provider(); provider != nil {
		return provider.GetKeysetJSON()
	}
	return nil, 0
}

// Install adds upstream's routes for the documents to a container. Before there
// are keys they answer 503 with Retry-After.
func (m *OpenIDMetadata) Install(container *restful.Container) {
	upstream := restful.NewContainer()
	routes.NewOpenIDMetadataServer(m).Install(upstream)
	for _, service := range upstream.RegisteredWebServices() {
		service.Filter(func(request *restful.Request, response *restful.Response, chain *restful.FilterChain) {
			if m.provider() == nil {
				sendUnavailable(response.ResponseWriter)
				return
			}
			chain.ProcessFilter(request, response)
		})
		container.Add(service)
	}
}

// retryAfterSeconds is when a client should try again: the service is back as soon
// as a replica is.
const retryAfterSeconds = 1

func sendUnavailable(w http.ResponseWriter) {
	body, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Code:     http.StatusServiceUnavailable,
		Reason:   metav1.StatusReasonServiceUnavailable,
		Message:  "the service that has the service-account keys has not been reached yet",
		Details:  &metav1.StatusDetails{RetryAfterSeconds: retryAfterSeconds},
	})
	if err != nil {
		body = nil
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Retry-After", strconv.Itoa(retryAfterSeconds))
	w.WriteHeader(http.StatusServiceUnavailable)
	// Whoever asked may be gone; there is nobody to tell.
	_, _ = w.Write(body)
}
