// Package blackbox holds tests of the built binary from outside: HTTP as curl
// would send it, clients that were written from the protocol's text alone, a real
// browser as a player, and a real reverse proxy in front. Nothing here reaches into
// the process that it tests. Tests in Chromium and Node have the build tag browser.
package blackbox
