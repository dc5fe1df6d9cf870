// Package app is the gateway's command: its flags, their completion and
// validation, and what it runs.
package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	cliflag "k8s.io/component-base/cli/flag"
	kubeapiserveroptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// Options are the gateway's flags: kube-apiserver's for what stays in this
// process, and where the gates are.
type Options struct {
	// Server are kube-apiserver's options, without those of the gates.
	Server *kubeapiserveroptions.ServerRunOptions
	// Gates say where the three services are and how to reach them.
	Gates *GatesOptions
	// EtcdStartupTimeout bounds how long the start waits for etcd; 0 is no bound.
	EtcdStartupTimeout time.Duration
}

// defaultEtcdStartupTimeout lets an etcd come minutes late, and has an operator
// with a wrong address see the process end.
const defaultEtcdStartupTimeout = 5 * time.Minute

// NewOptions returns the options with their defaults.
func NewOptions() *Options {
	server := kubeapiserveroptions.NewServerRunOptions()
	// Nil options of upstream have no flags and apply nothing.
	server.Admission = nil
	server.Authorization = nil
	// What belongs to the TLS handshake stays; anonymous is the absence of a token.
	server.Authentication = kubeoptions.NewBuiltInAuthenticationOptions().
		WithAnonymous().
		WithClientCert().
		WithRequestHeader().
		WithServiceAccounts()
	// Upstream's validation wants a signer and keys. The stages put the ones of
	// authn into their place.
	server.ServiceAccountIssuer = unboundIssuer{}
	server.Authentication.ServiceAccounts.ExternalPublicKeysGetter = unboundKeys{}
	return &Options{Server: server, Gates: NewGatesOptions(), EtcdStartupTimeout: defaultEtcdStartupTimeout}
}

// Flags returns the flags by section.
func (o *Options) Flags() cliflag.NamedFlagSets {
	fss := o.Server.Flags()
	o.Gates.AddFlags(fss.FlagSet("gates"))
	fss.FlagSet("etcd").DurationVar(&o.EtcdStartupTimeout, "etcd-startup-timeout", o.EtcdStartupTimeout,
		"How long to wait at the start for etcd to answer before giving up. 0 waits without limit.")
	moved := fss.FlagSet("moved")
	sections := sortedSections(fss)
	replaceMovedFlags(sections, moved)
	return fss
}

// CompletedOptions are options that are ready to be validated and used. Only
// Complete makes them.
type CompletedOptions struct {
	*completedOptions
}

type completedOptions struct {
	Server             kubeapiserveroptions.CompletedOptions
	Gates              GatesOptions
	EtcdStartupTimeout time.Duration
}

// Complete fills in what was left out. It opens no connection.
func (o *Options) Complete(ctx context.Context) (CompletedOptions, error) {
	server, err := o.Server.Complete(ctx)
	if err != nil {
		return CompletedOptions{}, err
	}
	return CompletedOptions{&completedOptions{Server: server, Gates: *o.Gates, EtcdStartupTimeout: o.EtcdStartupTimeout}}, nil
}

// Validate returns everything that is wrong with the options.
func (o CompletedOptions) Validate() []error {
	errs := o.Server.Validate()
	if len(o.Server.Authentication.ServiceAccounts.Issuers) == 0 {
		errs = append(errs, errors.New("--service-account-issuer: required, the same as trigate-authn's"))
	}
	if o.Server.Authentication.ClientCert.ClientCA == "" {
		errs = append(errs, errors.New("--client-ca-file: required, or nobody could get in while a gate is down"))
	}
	if o.EtcdStartupTimeout < 0 {
		errs = append(errs, fmt.Errorf("--etcd-startup-timeout: %s is negative", o.EtcdStartupTimeout))
	}
	return append(errs, o.Gates.Validate()...)
}

// errUnbound is what a stand-in answers that no stage has replaced.
var errUnbound = errors.New("the authn gate is not connected")

// unboundIssuer stands for the token issuer until the stages have dialled authn.
type unboundIssuer struct{}

var _ serviceaccount.TokenGenerator = unboundIssuer{}

func (unboundIssuer) GenerateToken(context.Context, *jwt.Claims, any) (string, error) {
	return "", errUnbound
}

// unboundKeys stands for the public keys until the stages have dialled authn.
type unboundKeys struct{}

var _ serviceaccount.PublicKeysGetter = unboundKeys{}

func (unboundKeys) AddListener(serviceaccount.Listener) {}

func (unboundKeys) GetCacheAgeMaxSeconds() int { return 0 }

func (unboundKeys) GetPublicKeys(context.Context, string) []serviceaccount.PublicKey { return nil }
