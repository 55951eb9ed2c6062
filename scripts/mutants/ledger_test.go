//go:build mutants

package mutants

// The state file.
var inLedger = []mutant{
	{
		rule: "ledger: a record is as its checksum says",
		file: "internal/statefile/format.go",
		old:  "binary.LittleEndian.Uint32(raw[:]) == raw.sum(seed, p) &&", now: "raw.sum(seed, p) != 0 &&",
		by: ledgerTest("TestBitFlips"),
	},
	{
		rule: "ledger: a checksum holds in one place only",
		file: "internal/statefile/format.go",
		old:  "crc32.Update(seed^uint32(p), castagnoli", now: "crc32.Update(seed, castagnoli",
		by: ledgerTest("TestMoved"),
	},
	{
		rule: "ledger: a checksum covers the nonce",
		file: "internal/statefile/format.go",
		old:  "castagnoli, raw[nonceAt:])", now: "castagnoli, raw[linksAt:])",
		by: ledgerTest("TestBitFlips"),
	},
	{
		rule: "ledger: a change is in the journal",
		file: "internal/statefile/statefile.go",
		old:  "err := l.disk.write(l.entry[:], journalAt)", now: "err := error(nil)",
		by: ledgerTest("TestTorn"),
	},
	{
		rule: "ledger: a torn place is mended from the journal",
		file: "internal/statefile/open.go",
		old:  "p == torn {", now: "p == torn && p == 0 {",
		by: ledgerTest("TestTorn"),
	},
	{
		rule: "ledger: a damaged file is not complete",
		file: "internal/statefile/open.go",
		old:  "if len(s.damaged) > 0 && s.err == nil {", now: "if len(s.damaged) > 0 && s.err != nil {",
		by: ledgerTest("TestTornWithoutJournal"),
	},
	{
		rule: "ledger: the file of another relay is not ours",
		file: "internal/statefile/format.go",
		old:  "case h.relay != relay:", now: "case h.relay != relay && size == 0:",
		by: ledgerTest("TestSetAside"),
	},
	{
		rule: "ledger: a crash of the machine leaves nothing complete",
		file: "internal/statefile/format.go",
		old:  "h.state&stateClosed == 0 && (h.machine", now: "h.state&stateClosed == 1 && (h.machine",
		by: ledgerTest("TestMachine"),
	},
	{
		rule: "ledger: older boots count only when the file is settled",
		file: "internal/statefile/open.go",
		old:  "if !l.Settled {", now: "if !l.Settled && len(l.Boots) == 0 {",
		by: ledgerTest("TestBoots"),
	},
	{
		rule: "ledger: a full file says so",
		file: "internal/statefile/statefile.go",
		old:  "l.overflowed = true\n\tl.head.state = 0", now: "l.overflowed = true\n\t_ = l.head.state",
		by: ledgerTest("TestFull"),
	},
	{
		rule: "ledger: a file that could not be written says so",
		file: "internal/statefile/statefile.go",
		old:  "l.off = true\n\tl.head.state = 0", now: "l.off = true\n\t_ = l.head.state",
		by: ledgerTest("TestWriteFails"),
	},
	{
		rule: "ledger: a place that is removed is free, on the disk too",
		file: "internal/statefile/statefile.go",
		old:  "l.raw = rawRecord{}", now: "_ = rawRecord{}",
		by: ledgerTest("TestModel"),
	},
}
