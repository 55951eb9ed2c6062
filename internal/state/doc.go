// Package state keeps the identity of a relay in a directory of its own: the id
// and the master key, from which every key of its allocations is derived.
//
// It owns what must outlive the process. The directory holds
//
//	identity    id, master key and a checksum, mode 0600, written once
//	lock        held while a process uses the directory, with its process id
//	allocations what a restart must know of each allocation, see internal/statefile
//	sessions    the DTLS sessions that go on after a restart, see internal/statefile
//
// The identity is one file, so that there is never half of one, and it comes
// into being complete or not at all: it is written to a temporary name, synced,
// renamed, and the directory is synced. Nothing is ever repaired: what is
// damaged, missing next to other files, or readable by others is an error,
// because a relay that silently takes a new key cuts off every match that is
// under way, and one that goes on with a key that others know protects nobody.
package state
