package pki

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// writeFile replaces a file so that a reader, or a machine that loses power, has
// the old content or the new and nothing in between.
func writeFile(path string, data []byte, mode fs.FileMode) error {
	if err := replaceFile(path, data, mode); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

func replaceFile(path string, data []byte, mode fs.FileMode) (err error) {
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
