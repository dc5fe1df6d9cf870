package client

import (
	"k8s.io/apiserver/pkg/authentication/user"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/internal/identity"
)

// UserToProto returns the message for a user, and nil for nil.
func UserToProto(u user.Info) *authnv1.UserInfo { return identity.ToProto(u) }
