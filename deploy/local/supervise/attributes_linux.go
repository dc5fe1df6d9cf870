package supervise

import "syscall"

// childAttributes puts a child into a process group of its own, and has it killed
// when the thread that started it dies.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
