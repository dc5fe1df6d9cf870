package chain

import (
	"bytes"
	"context"
	"os"
	"reflect"
	"time"

	"k8s.io/apiserver/pkg/server/options/authorizationconfig/metrics"
	"k8s.io/apiserver/pkg/util/filesystem"
	"k8s.io/klog/v2"
	kubeauthorizer "k8s.io/kubernetes/pkg/kubeapiserver/authorizer"
)

// reloadInterval is how often the file is looked at if no change is notified.
// It is upstream's.
const reloadInterval = time.Minute

// Run follows the configuration file, if there is one, until ctx ends. A
// configuration that cannot be used leaves the last one in force; the log and
// upstream's metrics say so.
func (c *Chain) Run(ctx context.Context) error {
	path := c.cfg.Upstream.ReloadFile
	if path == "" {
		return nil
	}
	logger := klog.FromContext(ctx).WithValues("file", path)
	metrics.RegisterMetrics()
	metrics.RecordAuthorizationConfigLastConfigInfo(c.cfg.ServerID, string(c.lastData))
	filesystem.WatchUntil(ctx, reloadInterval, path,
		func() {
			changed, err := c.reload(ctx, path)
			switch {
			case err != nil:
				logger.Error(err, "Keeping the last usable authorization configuration")
				metrics.RecordAuthorizationConfigAutomaticReloadFailure(c.cfg.ServerID)
			case changed:
				logger.Info("Reloaded the authorization configuration")
				metrics.RecordAuthorizationConfigAutomaticReloadSuccess(c.cfg.ServerID, string(c.lastData))
			}
		},
		func(err error) { logger.Error(err, "Watching the authorization configuration") },
	)
	return nil
}

// reload reports whether the file had a new configuration, which is in force
// then. Each content is tried once.
func (c *Chain) reload(ctx context.Context, path string) (bool, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	if bytes.Equal(data, c.lastData) {
		return false, nil
	}
	c.lastData = data
	config, err := kubeauthorizer.LoadAndValidateData(data, c.compiler, c.lastingTypes())
	if err != nil {
		return false, err
	}
	if reflect.DeepEqual(config, c.lastConfig) {
		return false, nil
	}
	c.lastConfig = config
	j, err := c.join(ctx, config)
	if err != nil {
		return false, err
	}
	close(c.current.Swap(j).replaced)
	return true, nil
}
