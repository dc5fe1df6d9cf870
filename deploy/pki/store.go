package pki

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Store keeps the files of a PKI, each under its path in a Layout. It is used by
// one caller at a time.
type Store interface {
	// Read returns what a file holds. The error is fs.ErrNotExist if there is none,
	// and names the file otherwise.
	Read(path string) ([]byte, error)
	// Write makes or replaces a file, whole or not at all. The error names it.
	Write(path string, data []byte) error
	// Remove removes a file. The error is fs.ErrNotExist if there is none.
	Remove(path string) error
}

// Directory is the Store whose paths are those of the file system. Private keys
// and kubeconfigs are for their owner only.
type Directory struct{}

var _ Store = Directory{}

// Read implements Store.
func (Directory) Read(path string) ([]byte, error) { return os.ReadFile(path) }

// Remove implements Store.
func (Directory) Remove(path string) error { return os.Remove(path) }

// Write replaces a file so that a reader, or a machine that loses power, has the
// old content or the new and nothing in between.
func (Directory) Write(path string, data []byte) error {
	mode := fs.FileMode(0o600)
	// A name alone makes nothing public: a kubeconfig may be kept under any.
	isPEM := bytes.HasPrefix(data, []byte("-----BEGIN ")) && !bytes.Contains(data, []byte("PRIVATE KEY"))
	if ext := filepath.Ext(path); isPEM && (ext == ".crt" || ext == ".pub") {
		mode = 0o644
	}
	if err := replaceFile(path, data, mode); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

func replaceFile(path string, data []byte, mode fs.FileMode) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	// CreateTemp makes the file for the owner only, so a key is never open to others.
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = temp.Close()
			_ = os.Remove(temp.Name())
		}
	}()
	if _, err = temp.Write(data); err != nil {
		return err
	}
	if err = temp.Chmod(mode); err != nil {
		return err
	}
	if err = temp.Sync(); err != nil {
		return err
	}
	if err = temp.Close(); err != nil {
		return err
	}
	return os.Rename(temp.Name(), path)
}

// DryRun is a Store that reads another and keeps to itself what is written.
type DryRun struct {
	// Store is what there is.
	Store   Store
	written map[string][]byte // nil for a file that was removed
}

var _ Store = (*DryRun)(nil)

// Read implements Store.
func (d *DryRun) Read(path string) ([]byte, error) {
	data, ok := d.written[path]
	switch {
	case !ok:
		return d.Store.Read(path)
	case data == nil:
		return nil, fs.ErrNotExist
	}
	return bytes.Clone(data), nil
}

// Write implements Store.
func (d *DryRun) Write(path string, data []byte) error {
	if d.written == nil {
		d.written = map[string][]byte{}
	}
	d.written[path] = append([]byte{}, data...)
	return nil
}

// Remove implements Store.
func (d *DryRun) Remove(path string) error {
	if _, err := d.Read(path); err != nil {
		return err
	}
	if d.written == nil {
		d.written = map[string][]byte{}
	}
	d.written[path] = nil
	return nil
}

// oneLine is an error's text without line breaks.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", " ") }
