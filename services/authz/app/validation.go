package app

import (
	"fmt"
	"strings"
)

// Validate returns all that is wrong, each message starting with a flag.
func (o CompletedOptions) Validate() []error {
	return append(o.serve.Validate(), o.validateAuthorization()...)
}

func (o CompletedOptions) validateAuthorization() []error {
	file := o.authorization.AuthorizationConfigurationFile
	if file == "" && len(o.authorization.Modes) == 0 {
		return []error{fmt.Errorf("--%s: is required if --%s is not given; nothing is allowed by default", flagMode, flagConfig)}
	}
	var errs []error
	for _, err := range o.authorization.Validate() {
		switch {
		case strings.HasPrefix(err.Error(), "--"):
			errs = append(errs, err)
		case file != "":
			errs = append(errs, inFile(flagConfig, file, err))
		default:
			errs = append(errs, fmt.Errorf("--%s: %w", flagMode, err))
		}
	}
	return errs
}

func inFile(flag, file string, err error) error {
	if strings.Contains(err.Error(), file) {
		return fmt.Errorf("--%s: %w", flag, err)
	}
	return fmt.Errorf("--%s: %s: %w", flag, file, err)
}
