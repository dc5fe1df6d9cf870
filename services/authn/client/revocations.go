package client

import (
	"context"
	"errors"
	"io"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/authn/internal/convert"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// Revocation tells of one object that identities hang on.
type Revocation = convert.Revocation

// Revocations say where the service is, and what has been revoked since the message
// before.
type Revocations = convert.Revocations

// WatchRevocations calls handle for each message until ctx ends or the stream does, and
// returns why: never nil. One comes every second at least.
func (t *Token) WatchRevocations(ctx context.Context, handle func(Revocations)) error {
	stream, err := t.authn.WatchRevocations(ctx, &authnv1.WatchRevocationsRequest{})
	if err != nil {
		return rpcerr.FromStatus(err, hop)
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return rpcerr.Draining(hop)
		}
		if err != nil {
			return rpcerr.FromStatus(err, hop)
		}
		handle(convert.FromRevocations(m))
	}
}
