package chain

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// The metrics in which upstream says what became of the AuthenticationConfiguration file.
const (
	configInfoMetric   = "apiserver_authentication_config_controller_last_config_info"
	configReloadMetric = "apiserver_authentication_config_controller_automatic_reload_last_timestamp_seconds"
)

// FileState is what became of the AuthenticationConfiguration file.
type FileState struct {
	// Hash is that of the content in force. Empty: there is no file.
	Hash string
	// Failed is whether the last attempt to put a new content into force failed.
	Failed bool
}

// ReadFileState reads what became of the file from upstream's metrics: it tells nobody
// else.
func ReadFileState(metrics prometheus.Gatherer) (FileState, error) {
	families, err := metrics.Gather()
	if err != nil {
		return FileState{}, fmt.Errorf("reading the state of the authentication configuration: %w", err)
	}
	var state FileState
	var failure, success float64
	for _, family := range families {
		for _, m := range family.GetMetric() {
			switch {
			case family.GetName() == configInfoMetric:
				state.Hash = labelOf(m.GetLabel(), "hash")
			case family.GetName() == configReloadMetric && labelOf(m.GetLabel(), "status") == "failure":
				failure = max(failure, m.GetGauge().GetValue())
			case family.GetName() == configReloadMetric:
				success = max(success, m.GetGauge().GetValue())
			}
		}
	}
	state.Failed = failure > success
	return state, nil
}

func labelOf[L interface {
	GetName() string
	GetValue() string
}](labels []L, name string) string {
	for _, label := range labels {
		if label.GetName() == name {
			return label.GetValue()
		}
	}
	return ""
}

// FlagsDigest returns a digest of those options, and of the file of static tokens, by
// which the verdict on a token may differ. They do not change while a process runs.
func FlagsDigest(options *kubeoptions.BuiltInAuthenticationOptions) (string, error) {
	parts := []any{
		APIAudiences(options), options.ServiceAccounts.Issuers, options.ServiceAccounts.Lookup,
		options.OIDC, options.BootstrapToken.Enable, options.WebHook.ConfigFile,
	}
	if file := options.TokenFile.TokenFile; file != "" {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("reading tokens: %w", err)
		}
		parts = append(parts, content)
	}
	encoded, err := json.Marshal(parts)
	if err != nil {
		return "", fmt.Errorf("encoding authentication options: %w", err)
	}
	return Digest(encoded), nil
}

// Digest returns a digest that says nothing of the content.
func Digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}
