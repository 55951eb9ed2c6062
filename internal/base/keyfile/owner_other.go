//go:build !unix

package keyfile

import (
	"fmt"
	"io/fs"
)

func isOwn(fs.FileInfo) bool { return true }

func checkOwner(string, fs.FileInfo) error { return nil }

func ownerError(path string, _ fs.FileInfo) error { return fmt.Errorf("%s %w", path, ErrOwner) }

func names(fs.FileInfo) uint64 { return 1 }

func grantedByRoot(fs.FileInfo) bool { return false }
