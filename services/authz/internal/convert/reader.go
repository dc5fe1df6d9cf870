package convert

import (
	"fmt"
	"slices"

	"k8s.io/apiserver/pkg/authentication/user"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/internal/identity"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// Limits on one question. They refuse nothing that kube-apiserver would be
// asked by people: requests have 1 MiB of headers at most and bodies of 3 MiB.
const (
	// maxItems bounds each repeated field.
	maxItems = 100_000
	// maxStringBytes bounds each string: a review's body with nothing else in it.
	maxStringBytes = 3 << 20
)

// reader reads the strings of one message, and remembers the first that cannot
// be used.
type reader struct {
	encoded bool
	dec     identity.Decoder
	err     *rpcerr.Error
}

// newReader returns the reader of a message with this percent_encoded field.
func newReader(encoded bool) reader {
	return reader{encoded: encoded, dec: identity.NewDecoder(encoded)}
}

// string reads one string. The field's name is in two parts, so that it costs
// nothing while all is well.
func (r *reader) string(parent, field, s string) string {
	if r.encoded {
		s = r.dec.StringOf(parent, field, s)
	}
	if len(s) > maxStringBytes {
		r.fail(parent+field, "has %d bytes, at most %d are accepted", len(s), maxStringBytes)
	}
	return s
}

func (r *reader) strings(field string, strs []string) []string {
	if len(strs) == 0 || !r.count(field, len(strs)) {
		return nil
	}
	return r.dec.Strings(field, strs)
}

// column reads the strings of one field, which are as many as are accepted. They are those
// of the message if that has them as they are.
func (r *reader) column(parent, field string, strs []string) column {
	if r.encoded {
		strs = r.dec.StringsOf(parent, field, strs)
	}
	for i, s := range strs {
		if len(s) > maxStringBytes {
			r.fail(fmt.Sprintf("%s%s[%d]", parent, field, i), "has %d bytes, at most %d are accepted", len(s), maxStringBytes)
		}
	}
	return strs
}

// count reports whether a repeated field has an acceptable number of items.
func (r *reader) count(field string, n int) bool {
	if n > maxItems {
		r.fail(field, "has %d items, at most %d are accepted", n, maxItems)
		return false
	}
	return true
}

func (r *reader) fail(field, format string, args ...any) {
	if r.err == nil {
		r.err = rpcerr.InvalidArgument(field, format, args...)
	}
}

// failure returns the first thing that is wrong, or nil.
func (r *reader) failure() error {
	// What cannot be decoded comes first: the rest may follow from it.
	if err := r.dec.Err(); err != nil {
		return err
	}
	if r.err != nil {
		return r.err
	}
	return nil
}

// UserFromProto returns the user that a question is about, which must be
// there.
func UserFromProto(field string, m *authnv1.UserInfo) (user.Info, error) {
	if m == nil {
		return nil, rpcerr.InvalidArgument(field, "is required")
	}
	if !tooMany(m) {
		return identity.FromProto(field, m)
	}
	r := newReader(false)
	r.count(field+".groups", len(m.GetGroups()))
	r.count(field+".extra", len(m.GetExtra()))
	for i, entry := range m.GetExtra() {
		r.count(fmt.Sprintf("%s.extra[%d].values", field, i), len(entry.GetValues()))
	}
	return nil, r.failure()
}

// tooMany reports whether a repeated field of a user has more items than are accepted.
func tooMany(m *authnv1.UserInfo) bool {
	return len(m.GetGroups()) > maxItems || len(m.GetExtra()) > maxItems ||
		slices.ContainsFunc(m.GetExtra(), func(entry *authnv1.ExtraEntry) bool { return len(entry.GetValues()) > maxItems })
}
