// Package testlog owns what tests of the command read while others write it.
package testlog

import (
	"bytes"
	"sync"
)

// Buffer collects what a process or a logger writes. Its zero value is empty;
// its methods may be called from several goroutines.
type Buffer struct {
	mu  sync.Mutex // guards all
	all bytes.Buffer
}

// Write appends p. It does not fail.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

// String returns what was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}
