// Package statefile stores the state of allocations that must survive a restart: a
// state file of checksummed records that is intact after the process is killed. No
// other package writes or reads that file. [Sessions] is a second file, with the state
// of DTLS sessions.
//
// The relay can recover without the file; with it, recovery is strict.
//
// # The file
//
//	header   4096 bytes: magic, version, sizes, relay, run of the machine, state,
//	         the last boots, CRC32C; then the number of changes and the journal
//	places   48 bytes each: a record with CRC32C, or zeros: free
//
// A checksum is keyed with version, relay and place, so that that of a moved record, or of
// another relay's, does not match. The file is sparse and has the size of its full
// capacity. New records go to the lowest free place.
//
// # Crashes
//
// A change is written to the journal first and then to its place, both by stores to a
// shared mapping of the file, or by WriteAt where there is none. If the process is
// killed during a change, the next Open finds the state before or after that change: a
// torn record is repaired from the journal, and a torn journal means that the record
// is unchanged. So a file is complete after kill -9.
//
// After a crash of the machine it is not, since pages reach the disk in any order. A
// file that was left open in an earlier run of the machine is therefore never
// complete, even if its checksums match. Only [File.Close] syncs, so that the file is
// complete after a regular reboot.
//
// # Rollback
//
// Each change raises a number in the file, and then the same number in a second file, the
// counter. After kill -9 the file is thus never behind its counter. A file that is
// behind is an older copy, or a process ran that could not open it: it is not complete. A
// copy of both files from one moment is not noticed, except that a copy of an open file
// is not complete after the machine has restarted, and that [PreviousRun].Closed shows
// when a closed file was closed.
//
// # Access
//
// Both files are opened relative to their directory, and only if no other user can have
// planted or read them; see [keyfile.Open]. Otherwise Open fails and changes nothing.
//
// # Absence as proof
//
// The absence of an allocation proves that it has ended, for the boots of the relay
// that the file accounts for: see [PreviousRun]. The file of a process accounts for its own
// boot from the start, and for earlier ones if the file that it found did, or after
// [File.Settle].
//
// # Full disks
//
// A store to a page for which a full disk has no space raises SIGBUS. A chunk of the
// file is therefore filled with zeros by WriteAt before its first use, where a full
// disk is an error. The mapping, which reserves space where the system can, starts
// small and doubles. Each access to it runs with debug.SetPanicOnFault, so that a
// fault is an error too, on file systems that need space to overwrite, or when another
// process truncates the file. After an error nothing is stored, and the file is marked as
// incomplete, or else removed.
//
// What was not stored is lost for the file, so its owner then writes it anew: [File.Rewrite]
// begins a second file beside the first, with space for all records; the owner adds them;
// [File.Complete] syncs it and renames it over the first. Until then, and after a crash
// before, no file is complete.
//
// # Ownership
//
// A File belongs to the control goroutine of the engine. One process may have the file
// open: the caller holds a lock on the relay's directory. Changes do not allocate, except
// for a few words when the mapping doubles.
package statefile
