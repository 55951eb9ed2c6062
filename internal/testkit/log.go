package testkit

import (
	"bytes"
	"sync"
)

// LogBuffer collects what a process or a logger writes. Its zero value is empty;
// its methods may be called from several goroutines.
type LogBuffer struct {
	mu  sync.Mutex // guards all
	all bytes.Buffer
}

// Write appends p. It does not fail.
func (b *LogBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

// String returns what was written so far.
func (b *LogBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}
