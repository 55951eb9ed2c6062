//go:build !linux

package redistest

import "syscall"

// endWithParent does nothing here: a test program that is killed leaves its
// servers behind.
func endWithParent() *syscall.SysProcAttr { return nil }
