package pki_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/trigate/trigate/deploy/pki"
)

// TestFileModes wants only certificates and public keys to be open to others, whatever
// a file is called.
func TestFileModes(t *testing.T) {
	for name, tc := range map[string]struct {
		file, content string
		want          fs.FileMode
	}{
		"certificate":                   {"a.crt", "-----BEGIN CERTIFICATE-----\n", 0o644},
		"public key":                    {"a.pub", "-----BEGIN PUBLIC KEY-----\n", 0o644},
		"key":                           {"a.key", "-----BEGIN EC PRIVATE KEY-----\n", 0o600},
		"key called a certificate":      {"a.crt", "-----BEGIN CERTIFICATE-----\n-----BEGIN EC PRIVATE KEY-----\n", 0o600},
		"kubeconfig":                    {"kubeconfig", "apiVersion: v1\n", 0o600},
		"kubeconfig called certificate": {"admin.crt", "apiVersion: v1\n", 0o600},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), tc.file)
			if err := (pki.Directory{}).Write(path, []byte(tc.content)); err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := info.Mode().Perm(); got != tc.want {
				t.Errorf("mode = %o, want %o", got, tc.want)
			}
		})
	}
}
