// Package blackbox holds tests of the built binary from outside: HTTP as curl
// would send it, and clients that were written from the protocol's text alone.
// Nothing here reaches into the process that it tests.
package blackbox
