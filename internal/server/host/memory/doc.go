// Package memory keeps the relay within its memory limit.
//
// It determines how much memory the process may use ([ReadLimit]), and whether it uses so
// much of it that it should accept nothing new ([Guard]). Requests for allocations are
// then refused for a while: otherwise the kernel would kill the process with all its live
// matches.
package memory
