// Package etcd runs etcd inside this process, with etcd's own flags.
//
// It exists so that a machine needs no etcd to run a control plane. It is stock
// etcd as a library: what etcd documents for a flag holds here. Three things
// differ, since it is made for one member on one machine: the ETCD_... variables
// of the environment are not read, messages are lines for people on stderr, and
// unless --listen-peer-urls is given no port is opened for other members.
package etcd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"go.etcd.io/etcd/pkg/v3/flags"
	"go.etcd.io/etcd/server/v3/embed"
)

// Flags of etcd whose values its FlagSet keeps outside of embed.Config. The
// others of that kind (discovery, CORS, allowed peers) have no use on one machine.
const (
	flagListenClientURLs    = "listen-client-urls"
	flagAdvertiseClientURLs = "advertise-client-urls"
	flagListenPeerURLs      = "listen-peer-urls"
	flagAdvertisePeerURLs   = "initial-advertise-peer-urls"
	flagListenMetricsURLs   = "listen-metrics-urls"
	flagLogOutputs          = "log-outputs"
)

// Run serves etcd until ctx is done, then closes it so that all that was
// acknowledged is on disk. It returns nil if it was ctx that ended it.
func Run(ctx context.Context, args []string) error {
	config, err := parse(args)
	if err != nil {
		return err
	}
	server, err := embed.StartEtcd(config)
	if err != nil {
		return fmt.Errorf("starting etcd: %w", err)
	}
	defer server.Close()
	select {
	case <-ctx.Done():
		return nil
	case <-server.Server.StopNotify():
		return errors.New("etcd stopped by itself")
	case err := <-server.Err():
		return fmt.Errorf("serving etcd: %w", err)
	}
}

// parse reads etcd's flags.
func parse(args []string) (*embed.Config, error) {
	config := embed.NewConfig()
	set := flag.NewFlagSet("etcd", flag.ContinueOnError)
	set.SetOutput(io.Discard) // the error is returned, and one line is enough
	config.AddFlags(set)
	if err := errors.Join(set.Set("log-format", "console"), set.Set(flagLogOutputs, "stderr")); err != nil {
		return nil, err
	}
	if err := set.Parse(args); err != nil {
		return nil, err
	}
	if set.NArg() > 0 {
		return nil, fmt.Errorf("%q is not a flag", set.Arg(0))
	}
	set.Visit(func(f *flag.Flag) { config.FlagsExplicitlySet[f.Name] = true })

	config.ListenClientUrls = flags.UniqueURLsFromFlag(set, flagListenClientURLs)
	config.AdvertiseClientUrls = flags.UniqueURLsFromFlag(set, flagAdvertiseClientURLs)
	config.ListenPeerUrls = nil
	if config.FlagsExplicitlySet[flagListenPeerURLs] {
		config.ListenPeerUrls = flags.UniqueURLsFromFlag(set, flagListenPeerURLs)
	}
	config.AdvertisePeerUrls = flags.UniqueURLsFromFlag(set, flagAdvertisePeerURLs)
	config.ListenMetricsUrls = flags.UniqueURLsFromFlag(set, flagListenMetricsURLs)
	config.LogOutputs = flags.UniqueStringsFromFlag(set, flagLogOutputs)
	if !config.FlagsExplicitlySet["initial-cluster"] {
		config.InitialCluster = config.InitialClusterFromName(config.Name)
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return config, nil
}
