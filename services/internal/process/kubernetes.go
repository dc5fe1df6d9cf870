package process

import (
	"crypto/tls"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// RESTConfig reads from a kubeconfig file how to reach the gateway's
// Kubernetes API, for the named program. Its clients have no rate limit: a
// gate that waits for its own client is an outage. They speak protobuf
// where they can, and client-go reloads the certificates that the file names.
// Errors start with the flag and name the file.
func RESTConfig(kubeconfig, name string) (*rest.Config, error) {
	config, err := restConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: reading %s: %w", kubeconfig, err)
	}
	config.UserAgent = name
	config.QPS = -1
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.DisableCompression = true
	// Warnings are for people; a service would only log its own.
	config.WarningHandlerWithContext = rest.NoWarnings{}
	return config, nil
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	// No loading rules: those fall back to the pod's own service account.
	file, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return nil, err
	}
	if err := clientcmd.ResolveLocalPaths(file); err != nil {
		return nil, err
	}
	config, err := clientcmd.NewDefaultClientConfig(*file, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, err
	}
	// Bad certificates are to be found now, and not at the first handshake.
	if _, err := rest.TLSConfigFor(config); err != nil {
		return nil, err
	}
	if config.CertFile != "" {
		if _, err := tls.LoadX509KeyPair(config.CertFile, config.KeyFile); err != nil {
			return nil, fmt.Errorf("certificate %s and key %s: %w", config.CertFile, config.KeyFile, err)
		}
	}
	return config, nil
}
