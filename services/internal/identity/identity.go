// Package identity turns Kubernetes users into messages and back, and has the
// percent-encoding that every message with strings of a client's choice uses:
// proto strings are UTF-8, and what Kubernetes' clients send need not be.
package identity

import (
	"maps"
	"slices"
	"strconv"

	"k8s.io/apiserver/pkg/authentication/user"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// ToProto returns the message for a user, and nil for nil. The user's slices
// are copied.
//
// A message does not tell nil from empty. Nor does upstream, with one
// exception: the JSON of a webhook has `null` for a key of extra whose values
// are nil. FromProto settles that.
func ToProto(u user.Info) *authnv1.UserInfo {
	if u == nil {
		return nil
	}
	extra := u.GetExtra()
	keys := slices.Sorted(maps.Keys(extra))
	enc := Encoder{encoded: needsEncoding(u, keys)}
	m := &authnv1.UserInfo{
		Name:           enc.String(u.GetName()),
		Uid:            enc.String(u.GetUID()),
		Groups:         enc.Strings(u.GetGroups()),
		PercentEncoded: enc.Encoded(),
	}
	for _, key := range keys {
		m.Extra = append(m.Extra, &authnv1.ExtraEntry{Key: enc.String(key), Values: enc.Strings(extra[key])})
	}
	return m
}

func needsEncoding(u user.Info, keys []string) bool {
	if NeedsEncoding(u.GetName(), u.GetUID()) || NeedsEncoding(u.GetGroups()...) || NeedsEncoding(keys...) {
		return true
	}
	for _, key := range keys {
		if NeedsEncoding(u.GetExtra()[key]...) {
			return true
		}
	}
	return false
}

// FromProto returns the user that a message stands for, and nil for nil. The
// field is where the message is in the request ("user"); an error is an
// InvalidArgument that names what in it cannot be read. A key of extra may be
// there only once.
//
// No groups and no extra are nil, as upstream's authenticators leave them. A key
// of extra without values has an empty slice, as one that came out of JSON does,
// so that webhooks see `[]` and never `null`.
func FromProto(field string, m *authnv1.UserInfo) (user.Info, error) {
	if m == nil {
		return nil, nil
	}
	dec := NewDecoder(m.GetPercentEncoded())
	u := &user.DefaultInfo{
		Name:   dec.StringOf(field, ".name", m.GetName()),
		UID:    dec.StringOf(field, ".uid", m.GetUid()),
		Groups: dec.StringsOf(field, ".groups", m.GetGroups()),
	}
	if len(m.GetExtra()) > 0 {
		u.Extra = make(map[string][]string, len(m.GetExtra()))
	}
	for i, entry := range m.GetExtra() {
		entryField := "" // which no error is about while nothing is decoded
		if m.GetPercentEncoded() {
			entryField = extraField(field, i)
		}
		key := dec.StringOf(entryField, ".key", entry.GetKey())
		if _, twice := u.Extra[key]; twice && dec.Err() == nil {
			return nil, rpcerr.InvalidArgument(extraField(field, i)+".key", "%q is there twice", key)
		}
		u.Extra[key] = dec.StringsOf(entryField, ".values", entry.GetValues())
		if u.Extra[key] == nil {
			u.Extra[key] = []string{}
		}
	}
	if err := dec.Err(); err != nil {
		return nil, err
	}
	return u, nil
}

// extraField is the name of an entry of extra.
func extraField(field string, i int) string { return field + ".extra[" + strconv.Itoa(i) + "]" }
