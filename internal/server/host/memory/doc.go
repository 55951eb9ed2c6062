// Package memory keeps the relay within its memory limit.
//
// It determines how much memory the process may use ([ReadLimit]), and when it should accept
// nothing new ([Guard]): otherwise the kernel would kill it with all its live matches.
package memory
