package pki

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// clusterName is what the cluster and its context are called in kubeconfigs.
const clusterName = "trigate"

// Kubeconfig describes a kubeconfig for one of the certificates of a Layout.
type Kubeconfig struct {
	// Path is the file.
	Path string
	// Server is the URL of the Kubernetes API. ClusterCA must have signed what is
	// served there.
	Server string
	// Identity is the client certificate.
	Identity Name
	// Embed copies the certificates and the key into the file, which can then be
	// copied elsewhere but must be written again after a renewal. Otherwise it names
	// the files, relative to its own place: clients then follow renewals by
	// themselves, and the directory may be moved or mounted elsewhere as a whole.
	Embed bool
}

// WriteKubeconfig brings a kubeconfig up to date. In a file that exists only the
// entries that it owns are set: what people keep there besides (other clusters,
// the current context, its namespace) stays. A file that cannot be parsed is
// an error and stays as well.
func (l *Layout) WriteKubeconfig(k Kubeconfig) error {
	old, err := os.ReadFile(k.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading kubeconfig: %w", err)
	}
	config, err := clientcmd.Load(old)
	if err != nil {
		return fmt.Errorf("reading kubeconfig %s: %w", k.Path, err)
	}
	cluster, user, err := l.kubeconfigEntries(k)
	if err != nil {
		return err
	}
	context := config.Contexts[clusterName]
	if context == nil {
		context = clientcmdapi.NewContext()
		config.Contexts[clusterName] = context
	}
	context.Cluster, context.AuthInfo = clusterName, string(k.Identity)
	config.Clusters[clusterName] = cluster
	config.AuthInfos[string(k.Identity)] = user
	if config.CurrentContext == "" {
		config.CurrentContext = clusterName
	}
	data, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("encoding kubeconfig %s: %w", k.Path, err)
	}
	if bytes.Equal(data, old) {
		return nil
	}
	return writeFile(k.Path, data, 0o600)
}

func (l *Layout) kubeconfigEntries(k Kubeconfig) (*clientcmdapi.Cluster, *clientcmdapi.AuthInfo, error) {
	cluster, user := clientcmdapi.NewCluster(), clientcmdapi.NewAuthInfo()
	cluster.Server = k.Server
	for _, file := range []struct {
		path string
		data *[]byte
		name *string
	}{
		{l.Cert(ClusterCA), &cluster.CertificateAuthorityData, &cluster.CertificateAuthority},
		{l.Cert(k.Identity), &user.ClientCertificateData, &user.ClientCertificate},
		{l.Key(k.Identity), &user.ClientKeyData, &user.ClientKey},
	} {
		var err error
		if k.Embed {
			*file.data, err = os.ReadFile(file.path)
		} else {
			*file.name, err = relativeTo(k.Path, file.path)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("writing kubeconfig %s: %w", k.Path, err)
		}
	}
	return cluster, user, nil
}

func relativeTo(kubeconfig, path string) (string, error) {
	dir, err := filepath.Abs(filepath.Dir(kubeconfig))
	if err != nil {
		return "", err
	}
	return filepath.Rel(dir, path)
}
