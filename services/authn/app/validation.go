package app

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/kubernetes/pkg/serviceaccount"
)

// Bounds of the longest validity of a token, as kube-apiserver has them.
const (
	minMaxExpiration = time.Hour
	maxMaxExpiration = (1 << 32) * time.Second
)

// Validate returns all that is wrong, each message starting with a flag.
func (o CompletedOptions) Validate() []error {
	errs := o.serve.Validate()
	if o.serve.Kubeconfig == "" {
		errs = append(errs, required(flagKubeconfig))
	}
	return append(errs, o.validateAuthentication()...)
}

func (o CompletedOptions) validateAuthentication() []error {
	var errs []error
	accounts := o.authentication.ServiceAccounts
	if len(accounts.Issuers) == 0 {
		errs = append(errs, required(flagIssuer))
	}
	if len(accounts.KeyFiles) == 0 {
		errs = append(errs, required(flagKeyFile))
	}
	if o.signingKeyFile == "" {
		errs = append(errs, required(flagSigningKeyFile))
	}
	if accounts.JWKSURI != "" {
		errs = append(errs, fmt.Errorf("--%s: belongs to the gateway, which serves the discovery documents", flagJWKSURI))
	}
	if longest := accounts.MaxExpiration; longest != 0 && (longest < minMaxExpiration || longest > maxMaxExpiration) {
		errs = append(errs, fmt.Errorf("--%s: must be between 1 hour and 2^32 seconds", flagMaxExpiration))
	}
	if len(errs) > 0 {
		return errs
	}
	for _, err := range o.authentication.Validate() {
		errs = append(errs, withFlag(err))
	}
	return errs
}

func required(flag string) error { return fmt.Errorf("--%s: is required", flag) }

// withFlag makes upstream's messages, which name a flag somewhere, start with it.
func withFlag(err error) error {
	text := strings.TrimLeft(err.Error(), "-")
	flag, rest, _ := strings.Cut(text, " ")
	if strings.Contains(flag, "-") {
		return fmt.Errorf("--%s: %s", flag, rest)
	}
	return err
}

// maxTokenLifetime returns how long a token may be valid that is signed here, and
// 0 for as long as the API allows.
func (o CompletedOptions) maxTokenLifetime() time.Duration {
	accounts := o.authentication.ServiceAccounts
	switch {
	case accounts.MaxExpiration == 0:
		return 0
	case accounts.ExtendExpiration:
		return max(accounts.MaxExpiration, serviceaccount.ExpirationExtensionSeconds*time.Second)
	}
	return accounts.MaxExpiration
}

// inFile puts the flag, and the file if the error does not name it, before an
// error.
func inFile(flag, file string, err error) error {
	if strings.Contains(err.Error(), file) {
		return fmt.Errorf("--%s: %w", flag, err)
	}
	return fmt.Errorf("--%s: %s: %w", flag, file, err)
}
