package redistest

import "syscall"

// endWithParent has the kernel end the child when its parent is gone.
func endWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
