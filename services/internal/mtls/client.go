package mtls

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	"google.golang.org/grpc/credentials"
)

// ClientConfig is what a client needs to call a peer.
type ClientConfig struct {
	// ServerName is the name in the server's certificate, whatever its address.
	ServerName string
	// ServerCAs are trusted to have signed the server's certificate.
	ServerCAs *Bundle
	// Client is shown to the server. Nil means that none is.
	Client *KeyPair
}

// ClientCredentials returns credentials that verify the server by name and
// show the client's certificate, each as its files are at the handshake.
func ClientCredentials(cfg ClientConfig) (credentials.TransportCredentials, error) {
	if cfg.ServerName == "" {
		return nil, errors.New("no server name to verify")
	}
	if cfg.ServerCAs == nil {
		return nil, errors.New("no CA to verify the server with")
	}
	return &clientCreds{cfg: cfg}, nil
}

type clientCreds struct{ cfg ClientConfig }

var _ credentials.TransportCredentials = (*clientCreds)(nil)

// ClientHandshake verifies the server with what the files say now.
func (c *clientCreds) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	tlsConfig := &tls.Config{
		MinVersion: tls.VersionTLS12,
		ServerName: c.cfg.ServerName,
		RootCAs:    c.cfg.ServerCAs.Pool(),
	}
	if c.cfg.Client != nil {
		tlsConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return c.cfg.Client.Certificate(), nil
		}
	}
	return credentials.NewTLS(tlsConfig).ClientHandshake(ctx, authority, conn)
}

// ServerHandshake refuses: these credentials are a client's.
func (c *clientCreds) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("client credentials used by a server")
}

// Info says which protocol this is.
func (c *clientCreds) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone returns credentials that read the same files.
func (c *clientCreds) Clone() credentials.TransportCredentials { return &clientCreds{cfg: c.cfg} }

// OverrideServerName is part of an interface that grpc has deprecated; the
// name is fixed when the credentials are made.
func (c *clientCreds) OverrideServerName(string) error {
	return errors.New("the server name cannot be overridden")
}
