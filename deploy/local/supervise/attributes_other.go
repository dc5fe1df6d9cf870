//go:build !linux

package supervise

import "syscall"

// childAttributes puts a child into a process group of its own. Only Linux can
// tie its life to its parent's.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
