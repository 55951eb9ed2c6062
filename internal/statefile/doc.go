// Package statefile owns what a restart must know of each allocation: a state
// file of checksummed records that survives the death of the process. No other
// package writes or reads that file. [Sessions] is a second file, with what a
// restart must know of each DTLS session.
//
// The file is a hint that makes recovery strict, never a condition for it. One
// that is missing, damaged or another relay's is reported and replaced, and
// where writing fails the relay goes on without it.
//
// # The file
//
//	header   4096 bytes: magic, version, sizes, relay, run of the machine, state,
//	         the last boots, CRC32C; behind them the journal
//	places   48 bytes each: a record with CRC32C, or zeros: free
//
// A checksum is keyed with version, relay and place, so that a record of
// another relay, or one that was moved, is damaged. The file is as long as its
// capacity and sparse; new records go to the lowest free place, so memory and
// disk follow use.
//
// # What survives what
//
// A change goes to the journal first, then to its place, both by stores to a
// shared mapping of the file, or by WriteAt where there is none. Whatever
// instruction a kill hits, the next Open finds either the state before or the
// state after the change that was under way: a torn record is repaired from
// the journal, a torn journal means that the record was not touched yet. So a
// file is complete after kill -9.
//
// After a crash of the machine it is not: pages reach the disk in any order. A
// file that was left open by an earlier run of the machine is therefore never
// complete, whatever its checksums say. [File.Close] syncs, so that a reboot
// in good order keeps it complete. Nothing else syncs, and the file may as
// well be on tmpfs, where no store ever waits for a disk.
//
// # Absence as proof
//
// That an allocation has ended follows from its absence, so the file says for
// which boots of the relay absence is a proof: see [Left]. A process accounts
// for its own boot from the start, and for those before it if the file it found
// did, or from [File.Settle] on.
//
// # Full disks
//
// A store to a page for which a full disk has no room is SIGBUS. So a chunk of
// the file is filled with zeros by WriteAt before its first use, where no room
// is an error; the mapping, which reserves room where the system can, starts
// small and doubles; and each access to it runs with debug.SetPanicOnFault, so
// that on file systems that need room to overwrite, or when another process cuts the
// file, the fault is an error, too. After any error the state file stores nothing
// more, and marks the file as incomplete, or else removes it.
//
// # Ownership
//
// A File has one owner, the control goroutine of the engine, and is not safe
// for concurrent use. The file has one process: the caller holds a lock on the
// relay's directory. Changes allocate nothing, but for a few words each time
// that the mapping doubles.
package statefile
