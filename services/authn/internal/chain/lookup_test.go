package chain

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trigate/trigate/services/internal/rpcerr"
)

// TestFailedLookups wants what nobody could be asked to leave the token undecided, and
// what nobody has to be asked not to: it is not there.
func TestFailedLookups(t *testing.T) {
	away := errors.New("connection refused")
	for name, test := range map[string]struct {
		key       key
		err       error
		undecided bool
	}{
		"the API is away":       {key{"ns", "robot"}, away, true},
		"it is not there":       {key{"ns", "robot"}, apierrors.NewNotFound(corev1.Resource("serviceaccounts"), "robot"), false},
		"it has no name":        {key{"ns", ""}, errors.New("resource name may not be empty"), false},
		"it has no namespace":   {key{"", "robot"}, errors.New("an empty namespace may not be set"), false},
		"its name is no name":   {key{"ns", "a/b"}, errors.New("invalid resource name"), false},
		"its namespace is none": {key{"..", "robot"}, errors.New("invalid namespace"), false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, l := withLookups(t.Context())
			if _, err := noted(ctx, "serviceaccounts", test.key, &corev1.ServiceAccount{}, test.err, nil); !errors.Is(err, test.err) {
				t.Errorf("noted() = %v, want upstream's error as it is", err)
			}
			if err := l.err(); rpcerr.IsCouldNotDecide(err) != test.undecided {
				t.Errorf("err() = %v, want it undecided = %v", err, test.undecided)
			}
		})
	}
}
