package runner

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOverride(t *testing.T) {
	own := []string{"--v=2", "--client-ca-file=/ca", "--enable-aggregator-routing"}
	for _, tt := range []struct {
		name  string
		extra []string
		want  []string
	}{
		{"nothing", nil, own},
		{"another flag", []string{"--audit-policy-file=/a=b"}, []string{"--v=2", "--client-ca-file=/ca", "--enable-aggregator-routing", "--audit-policy-file=/a=b"}},
		{"one of its own", []string{"--client-ca-file=/other"}, []string{"--v=2", "--enable-aggregator-routing", "--client-ca-file=/other"}},
		{"a switch", []string{"--enable-aggregator-routing=false"}, []string{"--v=2", "--client-ca-file=/ca", "--enable-aggregator-routing=false"}},
		{"other spellings", []string{"--client_ca_file=/other", "-v=5"}, []string{"--enable-aggregator-routing", "--client_ca_file=/other", "-v=5"}},
		{"flag and value apart", []string{"--v", "5"}, []string{"--client-ca-file=/ca", "--enable-aggregator-routing", "--v", "5"}},
		{"twice", []string{"--v=4", "--v=5"}, []string{"--client-ca-file=/ca", "--enable-aggregator-routing", "--v=4", "--v=5"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := slices.Clone(own)
			if diff := cmp.Diff(tt.want, override(own, tt.extra)); diff != "" {
				t.Errorf("override (-want +got):\n%s", diff)
			}
			if !slices.Equal(own, before) {
				t.Errorf("override changed what it was given to %v", own)
			}
		})
	}
}
