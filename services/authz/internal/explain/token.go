package explain

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/trigate/trigate/services/authz/internal/convert"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// place is where a page ends: at a subject of a binding, by its place there.
type place struct {
	binding convert.ObjectName
	subject int
}

// pageToken is what a page token holds. Names are bytes since they need not be
// valid UTF-8, which JSON would change.
type pageToken struct {
	Kind      string `json:"kind"`
	Namespace []byte `json:"namespace"`
	Name      []byte `json:"name"`
	Subject   int    `json:"subject"`
	// Question tells whether the token belongs to a question.
	Question []byte `json:"question"`
}

// token returns the page token that asks for what comes after the place.
func (p place) token(action authorizer.Attributes) string {
	// Nothing in it can fail.
	data, _ := json.Marshal(pageToken{
		Kind: p.binding.Kind, Namespace: []byte(p.binding.Namespace), Name: []byte(p.binding.Name),
		Subject: p.subject, Question: digest(action),
	})
	return base64.RawURLEncoding.EncodeToString(data)
}

// readPageToken returns the place that a page token stands for, and the one before
// all others for none. An error is an InvalidArgument about page_token.
func readPageToken(token string, action authorizer.Attributes) (place, error) {
	if token == "" {
		return place{subject: -1}, nil
	}
	var read pageToken
	data, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(data, &read)
	}
	if err != nil || read.Subject < 0 || read.Kind != kindClusterRoleBinding && read.Kind != kindRoleBinding {
		return place{}, rpcerr.InvalidArgument("page_token", "is none that this service gave")
	}
	if !bytes.Equal(read.Question, digest(action)) {
		return place{}, rpcerr.InvalidArgument("page_token", "is of another question")
	}
	binding := convert.ObjectName{Kind: read.Kind, Namespace: string(read.Namespace), Name: string(read.Name)}
	return place{binding: binding, subject: read.Subject}, nil
}

// digest tells apart actions for which RBAC may list other subjects.
func digest(a authorizer.Attributes) []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "%t %q", a.IsResourceRequest(), []string{
		a.GetVerb(), a.GetNamespace(), a.GetAPIGroup(), a.GetResource(), a.GetSubresource(), a.GetName(), a.GetPath(),
	}))
	return sum[:8]
}
