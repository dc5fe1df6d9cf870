package pki_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/trigate/trigate/deploy/pki"
)

// steps are those of a rotation.
var steps = []pki.Rotation{pki.AddRotation, pki.UseRotation, pki.RetireRotation}

func TestRotate(t *testing.T) {
	dir := copyOf(t, completeAt(t, start))
	config := pki.Config{Dir: dir, Clock: clocktesting.NewFakePassiveClock(start)}
	layout := &pki.Layout{Dir: dir}
	for name, signed := range signedBy {
		before := snapshot(t, dir)
		for _, step := range steps {
			if _, err := pki.Rotate(t.Context(), config, name, step); err != nil {
				t.Fatalf("%s of %s: %v", step, name, err)
			}
			for authority, names := range signedBy {
				for _, name := range names {
					if err := verify(t, layout, readCert(t, layout.Cert(name)), authority); err != nil {
						t.Errorf("after %s: %s: %v", step, name, err)
					}
				}
			}
			if again, err := pki.Rotate(t.Context(), config, name, step); err != nil || len(again.Written) > 0 && step != pki.AddRotation {
				t.Errorf("%s of %s again = %v, %v, want nothing written", step, name, again, err)
			}
			if written := ensure(t, config).Written; len(written) > 0 {
				t.Errorf("after %s, Ensure wrote %v", step, written)
			}
		}
		want := []string{string(name) + ".crt", string(name) + ".key"}
		for _, leaf := range signed {
			want = append(want, string(leaf)+".crt")
		}
		slices.Sort(want)
		if got := difference(before, snapshot(t, dir)); !slices.Equal(got, want) {
			t.Errorf("rotating %s changed %v, want %v", name, got, want)
		}
	}
}

func TestRotateServiceAccountKey(t *testing.T) {
	dir := copyOf(t, completeAt(t, start))
	config := pki.Config{Dir: dir, Clock: clocktesting.NewFakePassiveClock(start)}
	layout := &pki.Layout{Dir: dir}
	old := readFile(t, layout.ServiceAccountKey())
	for i, step := range steps {
		if _, err := pki.Rotate(t.Context(), config, pki.ServiceAccountKeys, step); err != nil {
			t.Fatal(err)
		}
		publics, err := keyutil.PublicKeysFromFile(layout.ServiceAccountPublicKey())
		if err != nil {
			t.Fatal(err)
		}
		if want := []int{2, 2, 1}[i]; len(publics) != want {
			t.Errorf("after %s there are %d public keys, want %d", step, len(publics), want)
		}
		if kept, want := string(readFile(t, layout.ServiceAccountKey())) == string(old), step == pki.AddRotation; kept != want {
			t.Errorf("after %s the old key signs = %v, want %v", step, kept, want)
		}
		if written := ensure(t, config).Written; len(written) > 0 {
			t.Errorf("after %s, Ensure wrote %v", step, written)
		}
	}
}

func TestRotateErrors(t *testing.T) {
	complete := completeAt(t, start)
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, layout *pki.Layout, config pki.Config)
		what   pki.Name
		step   pki.Rotation
		want   string
	}{
		{"no authority", nil, "admin", pki.AddRotation, `"admin" is no authority`},
		{"no step", nil, pki.GatesCA, "drop", `"drop" is no step`},
		{"its key is elsewhere", func(t *testing.T, l *pki.Layout, _ pki.Config) { remove(t, l.Key(pki.GatesCA)) }, pki.GatesCA, pki.AddRotation, "gates-ca.key, is missing"},
		{"retired before it is used", func(t *testing.T, _ *pki.Layout, config pki.Config) {
			if _, err := pki.Rotate(t.Context(), config, pki.GatesCA, pki.AddRotation); err != nil {
				t.Fatal(err)
			}
		}, pki.GatesCA, pki.RetireRotation, "take the step use first"},
		{"used before it is trusted", func(t *testing.T, l *pki.Layout, _ pki.Config) {
			write(t, l.NextKey(pki.GatesCA), readFile(t, l.Key(pki.EtcdCA)))
		}, pki.GatesCA, pki.UseRotation, "take the step add first"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config := pki.Config{Dir: copyOf(t, complete), Clock: clocktesting.NewFakePassiveClock(start)}
			if tt.change != nil {
				tt.change(t, &pki.Layout{Dir: config.Dir}, config)
			}
			before := snapshot(t, config.Dir)
			if _, err := pki.Rotate(t.Context(), config, tt.what, tt.step); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Rotate = %v, want an error with %q", err, tt.want)
			}
			if changed := difference(before, snapshot(t, config.Dir)); len(changed) > 0 {
				t.Errorf("Rotate changed %v", changed)
			}
		})
	}
}

// failing is a directory whose n-th change fails.
type failing struct {
	pki.Directory
	left int
}

var errFull = errors.New("disk full")

func (f *failing) Write(path string, data []byte) error {
	if f.left--; f.left < 0 {
		return errFull
	}
	return f.Directory.Write(path, data)
}

func (f *failing) Remove(path string) error {
	if f.left--; f.left < 0 {
		return errFull
	}
	return f.Directory.Remove(path)
}

// TestRotateInterrupted cuts a whole rotation short at each of its changes. Certificates
// are good all the time, and the rotation can be gone through from its start.
func TestRotateInterrupted(t *testing.T) {
	complete := completeAt(t, start)
	for n := 0; ; n++ {
		config := pki.Config{Dir: copyOf(t, complete), Clock: clocktesting.NewFakePassiveClock(start)}
		interrupted := config
		interrupted.Store = &failing{left: n}
		err := rotateAll(t, interrupted)
		if err == nil {
			if n < 8 {
				t.Errorf("a rotation made %d changes only", n)
			}
			return
		}
		if !errors.Is(err, errFull) {
			t.Fatal(err)
		}
		layout := &pki.Layout{Dir: config.Dir}
		for _, name := range signedBy[pki.GatesCA] {
			if err := verify(t, layout, readCert(t, layout.Cert(name)), pki.GatesCA); err != nil {
				t.Errorf("interrupted at change %d: %s: %v", n, name, err)
			}
		}
		if err := rotateAll(t, config); err != nil {
			t.Errorf("interrupted at change %d: %v", n, err)
		}
		if bundle, err := cert.CertsFromFile(layout.Cert(pki.GatesCA)); err != nil || len(bundle) != 1 {
			t.Errorf("interrupted at change %d: %d authorities in the end, %v", n, len(bundle), err)
		}
		if _, err := (pki.Directory{}).Read(layout.NextKey(pki.GatesCA)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("interrupted at change %d: a next key is left: %v", n, err)
		}
	}
}

func rotateAll(t *testing.T, config pki.Config) error {
	t.Helper()
	for _, step := range steps {
		if _, err := pki.Rotate(t.Context(), config, pki.GatesCA, step); err != nil {
			return err
		}
	}
	return nil
}

func TestRenewalKeepsNames(t *testing.T) {
	dir := copyOf(t, completeAt(t, start))
	config := pki.Config{Dir: dir, Clock: clocktesting.NewFakePassiveClock(start)}
	named := config
	named.AltNames = map[pki.Name]cert.AltNames{pki.APIServer: {DNSNames: []string{"api.example.org"}}}
	ensure(t, named)
	config.RenewAll = true
	if got := len(ensure(t, config).Written); got != 11 {
		t.Errorf("renewed %d, want all 11 certificates", got)
	}
	layout := &pki.Layout{Dir: dir}
	if err := readCert(t, layout.Cert(pki.APIServer)).VerifyHostname("api.example.org"); err != nil {
		t.Error(err)
	}
}

func TestDryRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	layout := ensure(t, pki.Config{Dir: dir, Store: &pki.DryRun{Store: pki.Directory{}}})
	if got, want := len(layout.Written), 2*(4+11+1); got != want {
		t.Errorf("a dry run would write %d files, want %d", got, want)
	}
	if _, err := (pki.Directory{}).Read(layout.Cert(pki.ClusterCA)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a dry run wrote: %v", err)
	}
}
