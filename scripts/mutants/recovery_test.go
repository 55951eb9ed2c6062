//go:build mutants

package mutants

// What comes back after a restart, and what does not.
var inRecovery = []mutant{
	{
		rule: "restart: what ended in this run does not come back",
		file: "engine/recovery.go",
		old:  "if boot == c.shared.sealer.Boot() || !c.shared.recovering(now) {", now: "if !c.shared.recovering(now) {",
		by: model,
	},
	{
		rule: "restart: nobody comes back after the window",
		file: "engine/recovery.go",
		old:  "if boot == c.shared.sealer.Boot() || !c.shared.recovering(now) {", now: "if boot == c.shared.sealer.Boot() {",
		by: model,
	},
	{
		rule: "restart: who came back and ended stays out",
		file: "engine/recovery.go",
		old:  "if _, ended := c.recovery.ended[id]; ended {", now: "if _, ended := c.recovery.ended[id]; ended && boot == 0 {",
		by: model,
	},
	{
		rule: "restart: who is not in a complete ledger had ended",
		file: "engine/recovery.go",
		old:  "return awaited || !c.recovery.left.Ended(boot)", now: "return awaited || boot != 0",
		by: model,
	},
	{
		rule: "restart: a BIND of before with an equal nonce is good from its endpoint only",
		file: "engine/recovery.go",
		old:  "cmd.nonce == before.Nonce && c.digest(cmd.from) != before.Endpoint)", now: "cmd.nonce == before.Nonce && before.Endpoint == 1)",
		by: model,
	},
	{
		rule: "restart: a BIND of before with a lower nonce is worthless",
		file: "engine/recovery.go",
		old:  "(cmd.nonce < before.Nonce ||", now: "(cmd.nonce < 0 ||",
		by: model,
	},
	{
		rule: "restart: who was kicked gets no link back",
		file: "engine/recovery.go",
		old:  "j.Banned || a.Links >= a.MaxConnections {", now: "a.Links >= a.MaxConnections {",
		by: model,
	},
	{
		rule: "restart: who had no link gets none back",
		file: "engine/recovery.go",
		old:  "a.Banned = cmd.claims.role == alloc.RoleJoiner && !a.EverLinked", now: "a.Banned = cmd.claims.role == alloc.RoleHost && !a.EverLinked",
		by: long,
	},
	{
		rule: "restart: a link that was closed since does not come back",
		file: "engine/commit.go",
		old:  "j.Linked, j.Leaving, j.Banned = 0, 0, joiner.Is(table.Rebuilt)", now: "j.Linked, j.Leaving, j.Banned = 0, 0, false",
		by: model,
	},
	{
		rule: "restart: a DISCONNECT without a link says that none comes back",
		file: "engine/commit.go",
		old:  "c.ban(sender, cmd.peer)", now: "_ = cmd.peer",
		by: model,
	},
	{
		rule: "restart: places of a host are kept for who had them",
		file: "engine/recovery.go",
		old:  "return int(a.Links)+int(a.Awaited) >= int(a.MaxConnections)", now: "return int(a.Links) >= int(a.MaxConnections)",
		by: engineTest("TestRestart/closed,_UTP2"),
	},
	{
		rule: "restart: without a ledger new players wait for those who were there",
		file: "engine/recovery.go",
		old:  "return now < c.shared.rules.recoverUntil-c.shared.rules.recoverFor+unsureMillis", now: "return now < 0",
		by: model,
	},
	{
		rule: "restart: a link comes back between two who came back",
		file: "engine/recovery.go",
		old:  "if ok && !peer.Is(table.Rebuilt) {", now: "if ok && peer.Is(table.Rebuilt) {",
		by: reason("relinked"),
	},
	{
		rule: "restart: a link comes back within a match",
		file: "engine/recovery.go",
		old:  "if j.Match != host.ID || j.Tenant != a.Tenant ||", now: "if j.Tenant != a.Tenant ||",
		by: model,
	},
	{
		rule: "restart: a host that may come back is not gone",
		file: "engine/commit.go",
		old:  "case !ok && c.mayReturn(t.id, t.boot, cmd.now):", now: "case !ok && c.mayReturn(t.id, t.boot, 1<<62):",
		by: reason("recovering/host_is_not_back"),
	},
	{
		rule: "restart: ERROR 3 about who may have been there is not limited by prefix",
		file: "engine/refuse.go",
		old:  "case w.shared.recovering(now) && w.shared.earlier.expects(id):", now: "case w.shared.recovering(now) && w.shared.budgets.unlimited:",
		by: model,
	},
	{
		rule: "restart: the nonce of a binding is in the ledger",
		file: "engine/recovery.go",
		old:  "c.stateFile.SetBinding(c.place(h), e.Nonce,", now: "c.stateFile.SetBinding(c.place(h), 0,",
		by: model,
	},
	{
		rule: "restart: an allocation that ends leaves the ledger",
		file: "engine/commit.go",
		old:  "c.stateFile.Remove(c.place(h))", now: "_ = c.place(h)",
		by: model,
	},
	{
		rule: "restart: who did not come back leaves the ledger",
		file: "engine/recovery.go",
		old:  "c.stateFile.Remove(lost.Place)", now: "_ = lost.Place",
		by: engineTest("TestLost"),
	},
	{
		rule: "restart: who lost its endpoint is bound nowhere in the ledger",
		file: "engine/commit.go",
		old:  "c.stateFile.SetEndpoint(c.place(displaced), 0)", now: "_ = displaced",
		by: long,
	},
	{
		rule: "restart: the ledger tells ports apart",
		file: "engine/recovery.go",
		old:  "const portAndKind = 0xFF_0000_FFFF", now: "const portAndKind = 0xFF_0000_0000",
		by: long,
	},
	{
		rule: "restart: the join code of a host is kept",
		file: "engine/reserve.go",
		old:  "c.stateFile.SetCode(c.place(e.Handle), packed)", now: "_ = packed",
		by: engineTest("TestKeepCode"),
	},
	{
		rule: "restart: the service is not told that a host which may come back is gone",
		file: "engine/recovery.go",
		old:  "return awaited || c.stateFile != nil && !c.recovery.left.Settled", now: "return c.stateFile == nil && awaited",
		by: engineTest("TestRestart/closed,_UTP2"),
	},
}
