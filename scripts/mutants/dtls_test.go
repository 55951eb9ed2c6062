//go:build mutants

package mutants

func dtlsTest(name string) killer { return killer{"./engine/dtls", name, ""} }

// What DTLS holds to: nonces, windows and transcripts, what a stranger costs, and
// how a session follows another one.
var inDTLS = []mutant{
	{
		rule: "a record is not taken twice",
		file: "engine/dtls/record.go",
		old:  "if word&bit != 0 {\n\t\t\t\treturn false", now: "if word&bit != 0 && false {\n\t\t\t\treturn false",
		by: dtlsTest("TestWindowNeverTwice"),
	},
	{
		rule: "a record in whose place there is a newer one is too old",
		file: "engine/dtls/record.go",
		old:  "case newest > block:\n\t\t\treturn false", now: "case newest > block+1<<20:\n\t\t\treturn false",
		by: dtlsTest("TestWindowEdges"),
	},
	{
		rule: "each record has a nonce of its own",
		file: "engine/dtls/record.go",
		old:  "binary.BigEndian.PutUint64(b[headerLen:], epoch1<<seqBits|seq)", now: "binary.BigEndian.PutUint64(b[headerLen:], epoch1<<seqBits)",
		by: dtlsTest("TestNonces"),
	},
	{
		rule: "sequence numbers do not wrap around",
		file: "engine/dtls/record.go",
		old:  "if seq >= 1<<seqBits {", now: "if seq >= 1<<62 {",
		by: dtlsTest("TestSequenceEnds"),
	},
	{
		rule: "both directions have keys of their own",
		file: "engine/dtls/record.go",
		old:  "newDirection(k.ServerWriteKey, k.ServerWriteIV)", now: "newDirection(k.ClientWriteKey, k.ClientWriteIV)",
		by: dtlsTest("TestDirections"),
	},
	{
		rule: "each handshake has a random of its own from us",
		file: "engine/dtls/server.go",
		old:  "rand.Read(h.server[:])", now: "rand.Read(h.server[:0])",
		by: dtlsTest("TestFreshKeys"),
	},
	{
		rule: "a Finished says the right thing",
		file: "engine/dtls/server.go",
		old:  "!hmac.Equal(want, m.body) {", now: "!hmac.Equal(want, want) {",
		by: dtlsTest("TestWrongFinished/last_byte"),
	},
	{
		rule: "a Finished is in turn",
		file: "engine/dtls/server.go",
		old:  "m.kind != msgFinished || m.seq != h.seq+2 {", now: "m.kind != msgFinished {",
		by: dtlsTest("TestWrongFinished/out_of_turn"),
	},
	{
		rule: "the Finished cover the ClientHello",
		file: "engine/dtls/server.go",
		old:  "h.transcript.Write(m.body)", now: "h.transcript.Write(m.body[:34])",
		by: dtlsTest("TestTampered/nothing"),
	},
	{
		rule: "our Finished covers that of the client",
		file: "engine/dtls/server.go",
		old:  "after, err := h.hashWith(h.exchange, body)", now: "after, err := h.hashWith(h.exchange)",
		by: dtlsTest("TestPionAnswersLost"),
	},
	{
		rule: "the extended master secret is used when it was offered",
		file: "engine/dtls/record.go",
		old:  "if extended {", now: "if !extended {",
		by: dtlsTest("TestPionAnswersLost"),
	},
	{
		rule: "a cookie is good for its source alone",
		file: "engine/dtls/server.go",
		old:  "{slot, from.Hi, from.Lo, from.Tail}", now: "{slot, from.Hi, from.Hi, from.Tail}",
		by: dtlsTest("TestCookie"),
	},
	{
		rule: "a cookie is good for its hello alone",
		file: "engine/dtls/server.go",
		old:  "append(append(c.in, h.before...), h.after...)", now: "append(c.in, h.after...)",
		by: dtlsTest("TestCookie"),
	},
	{
		rule: "a cookie gets old",
		file: "engine/dtls/server.go",
		old:  "int64(cookieSlot))", now: "int64(1<<20*cookieSlot))",
		by: dtlsTest("TestCookie"),
	},
	{
		rule: "a handshake is proven by a good cookie only",
		file: "engine/dtls/server.go",
		old:  "case w.cookies.valid(from, &c, now):", now: "case len(c.cookie) > 0 || w.cookies.valid(from, &c, now):",
		by: dtlsTest("TestBadCookie"),
	},
	{
		rule: "an answer is not larger than its hello",
		file: "engine/dtls/server.go",
		old:  "answerLen(&c) <= len(rec.whole) &&", now: "answerLen(&c) > 0 &&",
		by: dtlsTest("TestSizes"),
	},
	{
		rule: "an answer is not repeated for less than it was given for",
		file: "engine/dtls/server.go",
		old:  "if headerLen+len(h.flight) > len(rec.whole) {", now: "if headerLen+len(h.flight) < 0 {",
		by: dtlsTest("TestHelloAgain"),
	},
	{
		rule: "what follows a ClientHello is not heard",
		file: "engine/dtls/server.go",
		old:  "\t\t\tw.answered = true\n", now: "\t\t\tw.answered = false\n",
		by: dtlsTest("TestNoneButTheFirst"),
	},
	{
		rule: "a datagram earns one answer",
		file: "engine/dtls/server.go",
		old:  "\tw.answered = true\n\tw.send(to, w.out)", now: "\tw.answered = false\n\tw.send(to, w.out)",
		by: dtlsTest("TestOneFinished"),
	},
	{
		rule: "forged hellos have few places in all",
		file: "engine/dtls/server.go",
		old:  "w.r.direct.Add(1) > int64(w.r.conf.Direct) ||", now: "w.r.direct.Add(1) < 0 ||",
		by: dtlsTest("TestHalfOpenInAll"),
	},
	{
		rule: "forged hellos leave half of a prefix's places",
		file: "engine/dtls/server.go",
		old:  ">= w.r.conf.HalfOpenPerPrefix/2 {", now: ">= w.r.conf.HalfOpenPerPrefix {",
		by: dtlsTest("TestForgedPrefix"),
	},
	{
		rule: "a prefix has so many handshakes",
		file: "engine/dtls/server.go",
		old:  ">= w.r.conf.HalfOpenPerPrefix {", now: ">= w.r.conf.HalfOpen {",
		by: dtlsTest("TestHalfOpenPerPrefix"),
	},
	{
		rule: "networks of one customer are one prefix",
		file: "engine/dtls/records.go",
		old:  "Hi: from.Hi &^ 0xFF", now: "Hi: from.Hi &^ 0x0F",
		by: dtlsTest("TestHalfOpenPerPrefix"),
	},
	{
		rule: "all handshakes are so many",
		file: "engine/dtls/server.go",
		old:  "w.r.halfOpen.Add(1) > int64(w.r.conf.HalfOpen) {", now: "w.r.halfOpen.Add(1) < 0 {",
		by: dtlsTest("TestHalfOpenInAll"),
	},
	{
		rule: "the oldest handshake makes room, not the newest",
		file: "engine/dtls/server.go",
		old:  "\tw.drop(w.oldest)\n\tw.count(Evicted)", now: "\tw.drop(w.newest)\n\tw.count(Evicted)",
		by: dtlsTest("TestHalfOpenInAll"),
	},
	{
		rule: "forged hellos evict nobody",
		file: "engine/dtls/server.go",
		old:  "|| w.admit(prefix) != Answered {", now: "|| w.admit(prefix) != Answered && !w.evict() {",
		by: dtlsTest("TestHalfOpenInAll"),
	},
	{
		rule: "keys are not derived in vain for ever",
		file: "engine/dtls/server.go",
		old:  "w.handshakes[from].derived = derived", now: "w.handshakes[from].derived = 0*derived",
		by: dtlsTest("TestDerivations"),
	},
	{
		rule: "a handshake message in fragments is small",
		file: "engine/dtls/server.go",
		old:  "if m.size > w.r.conf.FragmentCap {", now: "if m.size < 0 {",
		by: dtlsTest("TestFragments/beyond_the_cap"),
	},
	{
		rule: "fragments come in order",
		file: "engine/dtls/server.go",
		old:  " || m.offset != m.size-h.missing {", now: " {",
		by: dtlsTest("TestFragments/one_missing"),
	},
	{
		rule: "a hello does not disturb a session that is heard",
		file: "engine/dtls/server.go",
		old:  "case w.inQuietPeriod(from):", now: "case false && w.quiet(from):",
		by: dtlsTest("TestProbes"),
	},
	{
		rule: "an authentic record ends the wait of a probe",
		file: "engine/dtls/records.go",
		old:  "s.probed.Store(false)", now: "s.probed.Store(true)",
		by: dtlsTest("TestProbeStartsAnew"),
	},
	{
		rule: "a handshake that is under way is not replaced without a cookie",
		file: "engine/dtls/server.go",
		old:  "case old == nil && len(c.cookie)", now: "case len(c.cookie)",
		by: dtlsTest("TestHelloOverHandshake"),
	},
	{
		rule: "a new session ends the one at its source",
		file: "engine/dtls/table.go",
		old:  "\t\tt.remove(old)\n", now: "\t\t_ = old\n",
		by: dtlsTest("TestKeepsSerial"),
	},
	{
		rule: "another allocation gets another serial",
		file: "engine/dtls/table.go",
		old:  "case old != nil && old.id == s.id:", now: "case old != nil:",
		by: dtlsTest("TestTakeOver"),
	},
	{
		rule: "the same allocation at the same source keeps its serial",
		file: "engine/dtls/table.go",
		old:  "case old != nil && old.id == s.id:", now: "case old != nil && old.id != s.id:",
		by: dtlsTest("TestKeepsSerial"),
	},
	{
		rule: "one allocation does not fill the table",
		file: "engine/dtls/table.go",
		old:  "len(mine) > t.each {", now: "len(mine) > t.max {",
		by: dtlsTest("TestPerIdentity"),
	},
	{
		rule: "there are so many sessions",
		file: "engine/dtls/table.go",
		old:  "old == nil && int(t.sessions.Load()) >= t.max {", now: "old == nil && int(t.sessions.Load()) > t.max {",
		by: dtlsTest("TestSessionsInAll"),
	},
	{
		rule: "a number of a record sent is stored before it is used",
		file: "engine/dtls/resume.go",
		old:  "if !store(place, to) {", now: "if false {",
		by: dtlsTest("TestCrashPoints"),
	},
	{
		rule: "a record that the process before may have accepted is not accepted",
		file: "engine/dtls/records.go",
		old:  "if rec.seq < s.floor || s.window", now: "if s.window",
		by: dtlsTest("TestCrashPoints"),
	},
	{
		rule: "a session that has ended changes nothing of the one that has its place",
		file: "engine/dtls/resume.go",
		old:  "v.place = 0", now: "_ = 0",
		by: dtlsTest("TestLateStore"),
	},
	{
		rule: "a file of sessions from another run of the machine is not read",
		file: "internal/statefile/sessions.go",
		old:  "string(page[:stampAt]) != string(want[:stampAt])", now: "false",
		by: dtlsTest("TestResumeNot/another_machine"),
	},
}
