package mtls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// ServerConfig is what a server needs to be called by peers and by people.
type ServerConfig struct {
	// Serving is the server's own certificate.
	Serving *KeyPair
	// PeerCAs sign the certificates of Trigate's own processes, and nothing else.
	PeerCAs *Bundle
	// ClientCAs sign the certificates of users. Nil means that no user's
	// certificate is accepted.
	ClientCAs *Bundle
}

// Identity is what the TLS handshake proved about the other side. It is the
// AuthInfo of the connection.
type Identity struct {
	credentials.TLSInfo

	// Peer is the common name of the certificate if one of the peer CAs signed
	// it, else empty. Nothing but the chain decides that: a user's certificate
	// with a peer's name is no peer.
	Peer string
	// User is the certificate's chain, leaf first, if one of the client CAs
	// signed it, else empty.
	User []*x509.Certificate
}

// FromContext returns the identity of the connection that an RPC came over,
// and false if it did not come over credentials of this package.
func FromContext(ctx context.Context) (Identity, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Identity{}, false
	}
	id, ok := p.AuthInfo.(Identity)
	return id, ok
}

// ServerCredentials returns credentials that accept a connection without a
// client certificate, or with one that the peer or client CAs signed, each as
// its file is at the handshake.
func ServerCredentials(cfg ServerConfig) (credentials.TransportCredentials, error) {
	if cfg.Serving == nil {
		return nil, errors.New("no serving certificate")
	}
	if cfg.PeerCAs == nil {
		return nil, errors.New("no CA to verify peers with")
	}
	return &serverCreds{cfg: cfg}, nil
}

type serverCreds struct{ cfg ServerConfig }

var _ credentials.TransportCredentials = (*serverCreds)(nil)

// ServerHandshake serves with what the files say now.
func (s *serverCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	peerCAs := s.cfg.PeerCAs.Certificates()
	var clientCAs []*x509.Certificate
	if s.cfg.ClientCAs != nil {
		clientCAs = s.cfg.ClientCAs.Certificates()
	}
	tlsConfig := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{*s.cfg.Serving.Certificate()},
		ClientAuth:   tls.VerifyClientCertIfGiven,
		ClientCAs:    poolOf(append(append([]*x509.Certificate{}, peerCAs...), clientCAs...)),
		// A resumed session would skip the verification against today's CAs.
		SessionTicketsDisabled: true,
	}
	secured, info, err := credentials.NewTLS(tlsConfig).ServerHandshake(conn)
	if err != nil {
		return nil, nil, err
	}
	tlsInfo, ok := info.(credentials.TLSInfo)
	if !ok {
		_ = secured.Close()
		return nil, nil, errors.New("the TLS handshake gave no TLS information")
	}
	return secured, identify(tlsInfo, peerCAs, clientCAs), nil
}

// identify asks each set of CAs on its own who the caller is: that the
// handshake found a chain to one of them does not say to which.
func identify(info credentials.TLSInfo, peerCAs, clientCAs []*x509.Certificate) Identity {
	id := Identity{TLSInfo: info}
	certs := info.State.PeerCertificates
	if chain := verify(certs, peerCAs); chain != nil {
		id.Peer = chain[0].Subject.CommonName
	}
	id.User = verify(certs, clientCAs)
	return id
}

func verify(certs, roots []*x509.Certificate) []*x509.Certificate {
	if len(certs) == 0 || len(roots) == 0 {
		return nil
	}
	chains, err := certs[0].Verify(x509.VerifyOptions{
		Roots:         poolOf(roots),
		Intermediates: poolOf(certs[1:]),
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil || len(chains) == 0 {
		// Not signed by these: the other set may know it, and if none does, the
		// caller is nobody.
		return nil
	}
	return chains[0]
}

// ClientHandshake refuses: these credentials are a server's.
func (s *serverCreds) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("server credentials used by a client")
}

// Info says which protocol this is.
func (s *serverCreds) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone returns credentials that read the same files.
func (s *serverCreds) Clone() credentials.TransportCredentials { return &serverCreds{cfg: s.cfg} }

// OverrideServerName is part of an interface that grpc has deprecated; a server
// has no name to override.
func (s *serverCreds) OverrideServerName(string) error {
	return errors.New("a server verifies no server name")
}
