// Package storetest holds the tests that every store of join codes has to
// pass. It owns what alloc.Store promises beyond its signatures.
package storetest
