//go:build mutants

package mutants

// The table of allocations, its contract, and what is sealed.
var inAlloc = []mutant{
	{
		rule: "a handle names one generation of its slot",
		file: "internal/table/table.go",
		old:  "snapshot(h.slot(), e) && e.Handle == h", now: "snapshot(h.slot(), e)",
		by: tableTest("TestContract4StaleHandlesNeverResolve"),
	},
	{
		rule: "the generation of a slot is never zero",
		file: "internal/table/writer.go",
		old:  "if generation == 0 {", now: "if generation == 1<<31 {",
		by: tableTest("TestContract4GenerationSkipsZero"),
	},
	{
		rule: "a slot is freed once",
		file: "internal/table/writer.go",
		old:  "append(t.w.free, h.slot())", now: "append(t.w.free, h.slot(), h.slot())",
		by: tableTest("TestTableModel"),
	},
	{
		rule: "a slot is not used again before Recycle",
		file: "internal/table/writer.go",
		old:  "t.w.live.Add(-1)", now: "t.w.live.Add(-1); t.Recycle(h)",
		by: tableTest("TestContract4SlotIsNotReusedBeforeRecycle"),
	},
	{
		rule: "an endpoint has one owner",
		file: "internal/table/writer.go",
		old:  "t.setEndpoint(displaced, ep, endpoint.Endpoint{})", now: "_ = ep",
		by: tableTest("TestTableBind"),
	},
	{
		rule: "a link counts once for its host",
		file: "internal/table/writer.go",
		old:  "t.Account(host).Links++", now: "t.Account(host).Links += 2",
		by: tableTest("TestTablePeer"),
	},
	{
		rule: "a link that ends frees its place at the host",
		file: "internal/table/writer.go",
		old:  "t.Account(e.Link).Links--", now: "_ = t.Account(e.Link)",
		by: tableTest("TestTableEndOfJoiner"),
	},
	{
		rule: "a host relays to those with whom it has a link",
		file: "internal/table/table.go",
		old:  "return t.findID(to, e) && e.Link == from.Handle", now: "return t.findID(to, e) && e.Link != 0",
		by: tableTest("TestTablePeer"),
	},
	{
		rule: "a joiner relays to its own host only",
		file: "internal/table/table.go",
		old:  "return t.findAt(from.Link, e) && e.ID == *to", now: "return t.findAt(from.Link, e)",
		by: tableTest("TestTablePeer"),
	},
	{
		rule: "a reader waits for the writer",
		file: "internal/table/record.go",
		old:  "if before&1 == 0 {", now: "if before|1 != 0 {",
		by: tableTest("TestContract2ReaderWaitsForTheWriter"),
	},
	{
		rule: "a miss counts on current cells only",
		file: "internal/table/table.go",
		old:  "// A miss counts only on the cells that are current.\n\t\tcurrent := shard.cells.Load()",
		now:  "// A miss counts only on the cells that are current.\n\t\tcurrent := c",
		by:   tableTest("TestContract1MissIsRetried"),
	},
	{
		rule: "what was freed in a full line leaves a tombstone",
		file: "internal/table/index.go",
		old:  "if open {\n\t\t\t\tline[i].Store(0)", now: "if open || true {\n\t\t\t\tline[i].Store(0)",
		by: tableTest("TestContract1LineThatWasFullStaysClosed"),
	},
	{
		rule: "nobody outside can choose endpoints that collide",
		file: "internal/table/table.go",
		old:  "rand.Read(seed[:])", now: "_ = rand.Read",
		by: tableTest("TestHashIsSeeded"),
	},
	{
		rule: "a stamp never goes back",
		file: "internal/table/stamp.go",
		old:  "old < uint32(tick);", now: "old != uint32(tick);",
		by: tableTest("TestContract3StampsNeverGoBack"),
	},
	{
		rule: "an unproven endpoint gets no more than its allowance",
		file: "internal/table/stamp.go",
		old:  "if left < uint32(size) {", now: "if left == 0 {",
		by: tableTest("TestUnproven"),
	},
	{
		rule: "an allowance of all ones is not proof",
		file: "internal/table/stamp.go",
		old:  "Store(min(allowance, proven-1))", now: "Store(allowance)",
		by: tableTest("TestUnproven"),
	},
	{
		rule: "ERROR 5 once a second for each peer",
		file: "internal/table/stamp.go",
		old:  "if recent && uint32(old>>32) == tag {", now: "if recent && uint32(old>>32) == tag && i > 0 {",
		by: tableTest("TestStranger"),
	},
	{
		rule: "a gate lets no more than its burst through at once",
		file: "internal/table/stamp.go",
		old:  "if full-now > r.Burst*r.Interval {", now: "if full-now > (r.Burst+1)*r.Interval {",
		by: tableTest("TestRateIsATokenBucket"),
	},
	{
		rule: "a quota bounds datagrams and bytes, each for itself",
		file: "internal/table/quota.go",
		old:  "if !ok1 || !ok2 {", now: "if !ok1 && !ok2 {",
		by: tableTest("TestQuotaBurst"),
	},
	{
		rule: "a datagram that a quota refuses costs nothing",
		file: "internal/table/quota.go",
		old:  "if !ok1 || !ok2 {\n\t\treturn false", now: "if !ok1 || !ok2 {\n\t\ta.meter.Store(uint64(datagrams)<<32 | uint64(volume)); return false",
		by: tableTest("TestQuotaRefusalIsFree"),
	},
	{
		rule: "a new allocation inherits no meter from its slot",
		file: "internal/table/writer.go",
		old:  "a.meter.Store(0)", now: "_ = a.meter.Load()",
		by: tableTest("TestQuotaIsPerAllocation"),
	},
	{
		rule: "each seal has a nonce of its own",
		file: "alloc/seal.go",
		old:  "io.ReadFull(s.rand, nonce)", now: "io.ReadFull(s.rand, nonce[:0])",
		by: allocTest("TestSealHidesAndVaries"),
	},
	{
		rule: "connection data names the run of the relay that sealed it",
		file: "alloc/seal.go",
		old:  "c.Relay, c.Boot, c.Issued = s.relay, s.boot, now.Unix()", now: "c.Relay, c.Issued = s.relay, now.Unix()",
		by: allocTest("TestSealSetsItsOwnFields"),
	},
	{
		rule: "a sealing key serves one epoch",
		file: "alloc/masterkey.go",
		old:  `[]byte("ferry connection data v1 "), epoch)`, now: `[]byte("ferry connection data v1 "), epoch/1000)`,
		by: allocTest("TestSealLayout"),
	},
	{
		rule: "the epoch of a live allocation is kept",
		file: "alloc/epoch.go",
		old:  "for e := range s.retained {", now: "for e := range map[uint16]int(nil) {",
		by: allocTest("TestRetainAndRelease"),
	},
	{
		rule: "each allocation has a key of its own",
		file: "alloc/masterkey.go",
		old:  "copy(d.in[len(deriverInfo):], id[:])", now: "copy(d.in[len(deriverInfo):], id[:8])",
		by: allocTest("TestDeriverIsHKDF"),
	},
}
