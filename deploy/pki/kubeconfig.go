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

// Credentials are what a kubeconfig holds for one user of the Kubernetes API, in
// PEM.
type Credentials struct {
	// Authorities have signed, one of them, what the API is served with.
	Authorities []byte
	// Certificate and Key are the client's.
	Certificate, Key []byte
}

// WriteKubeconfig brings a kubeconfig up to date. In a file that exists only the
// entries that it owns are set: what people keep there besides (other clusters,
// the current context, its namespace) stays. A file that cannot be parsed is
// an error and stays as well.
func (l *Layout) WriteKubeconfig(k Kubeconfig) error {
	cluster, user, err := l.kubeconfigEntries(k)
	if err != nil {
		return err
	}
	return mergeKubeconfig(k.Path, cluster, string(k.Identity), user)
}

// WriteKubeconfig brings a kubeconfig that holds the credentials themselves up to
// date, as Layout.WriteKubeconfig does. name is what the user is called in it.
func (c Credentials) WriteKubeconfig(path, server, name string) error {
	cluster, user := c.entries(server)
	return mergeKubeconfig(path, cluster, name, user)
}

// Kubeconfig returns a kubeconfig that holds the credentials and nothing else.
func (c Credentials) Kubeconfig(server, name string) ([]byte, error) {
	cluster, user := c.entries(server)
	config := clientcmdapi.NewConfig()
	setEntries(config, cluster, name, user)
	return clientcmd.Write(*config)
}

func (c Credentials) entries(server string) (*clientcmdapi.Cluster, *clientcmdapi.AuthInfo) {
	cluster, user := clientcmdapi.NewCluster(), clientcmdapi.NewAuthInfo()
	cluster.Server, cluster.CertificateAuthorityData = server, c.Authorities
	user.ClientCertificateData, user.ClientKeyData = c.Certificate, c.Key
	return cluster, user
}

func mergeKubeconfig(path string, cluster *clientcmdapi.Cluster, name string, user *clientcmdapi.AuthInfo) error {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading kubeconfig: %w", err)
	}
	config, err := clientcmd.Load(old)
	if err != nil {
		return fmt.Errorf("reading kubeconfig %s: %w", path, err)
	}
	setEntries(config, cluster, name, user)
	data, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("encoding kubeconfig %s: %w", path, err)
	}
	if bytes.Equal(data, old) {
		return nil
	}
	return Directory{}.Write(path, data)
}

func setEntries(config *clientcmdapi.Config, cluster *clientcmdapi.Cluster, name string, user *clientcmdapi.AuthInfo) {
	context := config.Contexts[clusterName]
	if context == nil {
		context = clientcmdapi.NewContext()
		config.Contexts[clusterName] = context
	}
	context.Cluster, context.AuthInfo = clusterName, name
	config.Clusters[clusterName] = cluster
	config.AuthInfos[name] = user
	if config.CurrentContext == "" {
		config.CurrentContext = clusterName
	}
}

func (l *Layout) kubeconfigEntries(k Kubeconfig) (*clientcmdapi.Cluster, *clientcmdapi.AuthInfo, error) {
	if k.Embed {
		credentials, err := l.Credentials(Directory{}, k.Identity)
		if err != nil {
			return nil, nil, fmt.Errorf("writing kubeconfig %s: %w", k.Path, err)
		}
		cluster, user := credentials.entries(k.Server)
		return cluster, user, nil
	}
	cluster, user := clientcmdapi.NewCluster(), clientcmdapi.NewAuthInfo()
	cluster.Server = k.Server
	for _, file := range []struct {
		path string
		name *string
	}{
		{l.Cert(ClusterCA), &cluster.CertificateAuthority},
		{l.Cert(k.Identity), &user.ClientCertificate},
		{l.Key(k.Identity), &user.ClientKey},
	} {
		var err error
		if *file.name, err = relativeTo(k.Path, file.path); err != nil {
			return nil, nil, fmt.Errorf("writing kubeconfig %s: %w", k.Path, err)
		}
	}
	return cluster, user, nil
}

// Credentials returns those of one of the certificates of ClusterCA.
func (l *Layout) Credentials(store Store, identity Name) (Credentials, error) {
	var c Credentials
	for _, file := range []struct {
		path string
		data *[]byte
	}{
		{l.Cert(ClusterCA), &c.Authorities},
		{l.Cert(identity), &c.Certificate},
		{l.Key(identity), &c.Key},
	} {
		var err error
		if *file.data, err = store.Read(file.path); err != nil {
			return Credentials{}, fmt.Errorf("reading %s: %w", file.path, err)
		}
	}
	return c, nil
}

func relativeTo(kubeconfig, path string) (string, error) {
	dir, err := filepath.Abs(filepath.Dir(kubeconfig))
	if err != nil {
		return "", err
	}
	return filepath.Rel(dir, path)
}
