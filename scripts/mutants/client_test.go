//go:build mutants

package mutants

// The player's side.
var inClient = []mutant{
	{
		rule: "client: what is not from the relay is not heard",
		file: "client/receive.go",
		old:  "if !s.fromRelay(from) {", now: "if !s.fromRelay(from) && n == 0 {",
		by: clientTest("TestStrangersAreIgnored"),
	},
	{
		rule: "client: an ERROR about another allocation ends no game",
		file: "client/receive.go",
		old:  "m.ID != s.own && m.Code != proto.ErrorVersion {", now: "m.ID != s.own && m.Code == proto.ErrorVersion {",
		by: clientTest("TestFatalErrors"),
	},
	{
		rule: "client: a RELAY to somebody else is not read",
		file: "client/receive.go",
		old:  "if m.To != s.own {", now: "if m.From == s.own {",
		by: clientTest("TestWhatARelayDoesNotSend"),
	},
	{
		rule: "client: the nonce never wraps",
		file: "client/bind.go",
		old:  "if b.next == math.MaxUint16 {", now: "if b.next == math.MaxUint16 && b.sends < 0 {",
		by: clientTest("TestNonceNeverWraps"),
	},
	{
		rule: "client: a storm of ERROR 3 spends a nonce each 100 ms at most",
		file: "client/bind.go",
		old:  "rebindPause = 100 * time.Millisecond", now: "rebindPause = 10 * time.Millisecond",
		by: clientTest("TestErrorMismatchStorm"),
	},
	{
		rule: "client: BINDs without an answer move on to another nonce",
		file: "client/bind.go",
		old:  "b.sends%sendsPerNonce == 0 && !b.renew() {", now: "b.sends%sendsPerNonce == 9 && !b.renew() {",
		by: clientTest("TestBindRepeatsWithTheSameNonceAndThenMovesOn"),
	},
	{
		rule: "client: silence binds again with a nonce of its own",
		file: "client/bind.go",
		old:  "if now < silent {", now: "if now < 2*silent {",
		by: clientTest("TestSilenceBindsAgainWithAGreaterNonce"),
	},
}
