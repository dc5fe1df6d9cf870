package chain

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"

	authzconfig "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
)

// digestBytes is how much of a digest is used: enough that no two configurations
// have the same, and short, since it is in every answer.
const digestBytes = 12

// digest returns what tells a configuration from others, to be equal in all
// processes that have the same.
func digest(config *authzconfig.AuthorizationConfiguration, abacPolicy []byte) (string, error) {
	data, err := json.Marshal(config)
	if err != nil {
		return "", fmt.Errorf("digesting the authorization configuration: %w", err)
	}
	policySum := sha256.Sum256(abacPolicy)
	sum := sha256.Sum256(append(data, policySum[:]...))
	return hex.EncodeToString(sum[:digestBytes]), nil
}

// abacPolicy returns the content of the ABAC policy's file, if one is configured.
func (c *Chain) abacPolicy() ([]byte, error) {
	if !Has(c.lastConfig, modes.ModeABAC) {
		return nil, nil
	}
	return os.ReadFile(c.cfg.Upstream.PolicyFile)
}
