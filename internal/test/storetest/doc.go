// Package storetest holds the tests that every store of join codes, every
// directory and every registry of a fleet has to pass. It owns what alloc.Store,
// fleet.Directory and fleet.Registry promise beyond their signatures.
package storetest
