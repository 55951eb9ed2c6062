// Package state keeps the identity of a relay in a directory: the id and the master key,
// from which the keys of its allocations are derived.
//
// The directory contains
//
//	identity    id, master key and a checksum, mode 0600, written once
//	lock        held while a process uses the directory, with its process id
//	allocations what a restart must know of each allocation, see engine/internal/statefile
//	sessions    the DTLS sessions that go on after a restart, see engine/internal/statefile
//	usage       what projects have used in all runs
//	bans        whom the operator has banned
//	signouts    the sessions of the console that were signed out
//	*.counter   show whether an older copy of allocations or sessions was put back
//
// Allocations, sessions and their counters may be in a directory of their own, see [Dir.UseRuntime].
//
// The identity is one file, which is either complete or absent: it is written to a
// temporary name, synced and renamed, and the directory is synced. Nothing is repaired.
// An identity that is damaged, missing next to other files, or readable by other users is
// an error: a relay with a new key would end every match, and a relay with a known key
// would protect none. So is an identity or a directory of another user, who may have
// chosen the key. All files are opened relative to the directory, without following
// symbolic links, and none is changed before it was checked.
package state
