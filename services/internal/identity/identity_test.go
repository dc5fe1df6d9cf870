package identity

import (
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/apiserver/pkg/authentication/user"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

func TestToProto(t *testing.T) {
	for name, tc := range map[string]struct {
		user user.Info
		want *authnv1.UserInfo
	}{
		"nobody": {},
		"all fields": {
			user: &user.DefaultInfo{
				Name: "jané", UID: "1%20", Groups: []string{"b", "a"},
				Extra: map[string][]string{"z": {"2", "1"}, "a": {"x"}},
			},
			want: &authnv1.UserInfo{
				Name: "jané", Uid: "1%20", Groups: []string{"b", "a"},
				Extra: []*authnv1.ExtraEntry{{Key: "a", Values: []string{"x"}}, {Key: "z", Values: []string{"2", "1"}}},
			},
		},
		"one string is not UTF-8, all are encoded": {
			user: &user.DefaultInfo{
				Name: "jané doe", UID: "1%20", Groups: []string{"system:masters"},
				Extra: map[string][]string{"k/\t": {"\xff"}},
			},
			want: &authnv1.UserInfo{
				Name: "jan%C3%A9%20doe", Uid: "1%2520", Groups: []string{"system:masters"},
				Extra:          []*authnv1.ExtraEntry{{Key: "k/%09", Values: []string{"%FF"}}},
				PercentEncoded: true,
			},
		},
		"a key that is not UTF-8":   {user: &user.DefaultInfo{Extra: map[string][]string{"\xc3": {}}}, want: &authnv1.UserInfo{Extra: []*authnv1.ExtraEntry{{Key: "%C3"}}, PercentEncoded: true}},
		"a group that is not UTF-8": {user: &user.DefaultInfo{Groups: []string{"\x80"}}, want: &authnv1.UserInfo{Groups: []string{"%80"}, PercentEncoded: true}},
		"a uid that is not UTF-8":   {user: &user.DefaultInfo{UID: "\x80"}, want: &authnv1.UserInfo{Uid: "%80", PercentEncoded: true}},
		"a name that is not UTF-8":  {user: &user.DefaultInfo{Name: "\x80"}, want: &authnv1.UserInfo{Name: "%80", PercentEncoded: true}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, ToProto(tc.user), protocmp.Transform()); diff != "" {
				t.Errorf("ToProto() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFromProto(t *testing.T) {
	for name, tc := range map[string]struct {
		message *authnv1.UserInfo
		want    user.Info
		// wantField is the field that the error names.
		wantField string
	}{
		"nobody":    {},
		"a nobody":  {message: &authnv1.UserInfo{}, want: &user.DefaultInfo{}},
		"no values": {message: &authnv1.UserInfo{Extra: []*authnv1.ExtraEntry{{Key: "k"}}}, want: &user.DefaultInfo{Extra: map[string][]string{"k": {}}}},
		"not encoded: an escape is text": {
			message: &authnv1.UserInfo{Name: "%41%"},
			want:    &user.DefaultInfo{Name: "%41%"},
		},
		"encoded": {
			message: &authnv1.UserInfo{
				Name: "%41%ff", Uid: "é%2f", Groups: []string{"%00"},
				Extra: []*authnv1.ExtraEntry{{Key: "a%20b", Values: []string{"", "%25"}}}, PercentEncoded: true,
			},
			want: &user.DefaultInfo{Name: "A\xff", UID: "é/", Groups: []string{"\x00"}, Extra: map[string][]string{"a b": {"", "%"}}},
		},
		"bad name":            {message: &authnv1.UserInfo{Name: "%", PercentEncoded: true}, wantField: "user.name"},
		"bad uid":             {message: &authnv1.UserInfo{Uid: "%4", PercentEncoded: true}, wantField: "user.uid"},
		"bad group":           {message: &authnv1.UserInfo{Groups: []string{"ok", "%GG"}, PercentEncoded: true}, wantField: "user.groups[1]"},
		"bad key":             {message: &authnv1.UserInfo{Extra: []*authnv1.ExtraEntry{{Key: "%4G"}}, PercentEncoded: true}, wantField: "user.extra[0].key"},
		"bad value":           {message: &authnv1.UserInfo{Extra: []*authnv1.ExtraEntry{{Key: "k", Values: []string{"a", "%%"}}}, PercentEncoded: true}, wantField: "user.extra[0].values[1]"},
		"a key twice":         {message: &authnv1.UserInfo{Extra: []*authnv1.ExtraEntry{{Key: "k"}, {Key: "k"}}}, wantField: "user.extra[1].key"},
		"a key twice, hidden": {message: &authnv1.UserInfo{Extra: []*authnv1.ExtraEntry{{Key: "A"}, {Key: "%41"}}, PercentEncoded: true}, wantField: "user.extra[1].key"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := FromProto("user", tc.message)
			if tc.wantField != "" {
				e, ok := rpcerr.As(err)
				if !ok || e.Reason != rpcerr.ReasonInvalidArgument || e.Field != tc.wantField {
					t.Fatalf("FromProto() = %v, want an invalid %s", err, tc.wantField)
				}
				if got != nil {
					t.Errorf("FromProto() = %v with an error, want nil", got)
				}
				return
			}
			if err != nil {
				t.Fatalf("FromProto() = %v, want nil", err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("FromProto() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, s := range []string{"%", "a%", "%4", "%4g", "%g4", "%%41", "%-1"} {
		if got, err := Decode(s); err == nil {
			t.Errorf("Decode(%q) = %q, want an error", s, got)
		}
	}
}

func FuzzUser(f *testing.F) {
	f.Add("jane", "1", "system:masters", "example.com/team", "blue")
	f.Add("", "", "", "", "")
	f.Add("\xff", "%", "%41", "é", "\x00\xc3")
	f.Fuzz(func(t *testing.T, name, uid, group, key, value string) {
		u := &user.DefaultInfo{Name: name, UID: uid, Groups: []string{group, name}, Extra: map[string][]string{key: {value, ""}, "fixed": {}}}
		if key == "fixed" {
			u.Extra = map[string][]string{key: {value}}
		}
		m := ToProto(u)
		if m.GetPercentEncoded() == (utf8.ValidString(name) && utf8.ValidString(uid) && utf8.ValidString(group) && utf8.ValidString(key) && utf8.ValidString(value)) {
			t.Errorf("percent_encoded = %v for %q", m.GetPercentEncoded(), u)
		}
		wire, err := proto.Marshal(m)
		if err != nil {
			t.Fatalf("Marshal(%v) = %v, want nil", m, err)
		}
		received := &authnv1.UserInfo{}
		if err := proto.Unmarshal(wire, received); err != nil {
			t.Fatalf("Unmarshal() = %v, want nil", err)
		}
		got, err := FromProto("user", received)
		if err != nil {
			t.Fatalf("FromProto(%v) = %v, want nil", received, err)
		}
		if diff := cmp.Diff(user.Info(u), got); diff != "" {
			t.Errorf("round trip (-want +got):\n%s", diff)
		}
	})
}

func BenchmarkRoundTrip(b *testing.B) {
	u := &user.DefaultInfo{
		Name: "system:serviceaccount:default:builder", UID: "5a9d", Groups: []string{"system:serviceaccounts", "system:authenticated"},
		Extra: map[string][]string{"authentication.kubernetes.io/pod-name": {"builder-0"}},
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := FromProto("user", ToProto(u)); err != nil {
			b.Fatal(err)
		}
	}
}
