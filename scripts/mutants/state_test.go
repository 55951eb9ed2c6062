//go:build mutants

package mutants

// Control's verdicts, and what waits for grace.
var inState = []mutant{
	{
		rule: "control looks again whether the sender is still where it was",
		file: "engine/commit.go",
		old:  "if !ok || sender.Endpoint != cmd.from {", now: "if !ok {",
		by: reason("stale"),
	},
	{
		rule: "control looks again whether the source may be answered",
		file: "engine/commit.go",
		old:  "if c.shared.sources.refused(cmd.from) {", now: "if c.shared.sources.refused(cmd.from) && cmd.nonce == 0 {",
		by: engineTest("TestServicePorts"),
	},
	{
		rule: "control looks again whether the nonce is new",
		file: "engine/commit.go",
		old:  "if e.Is(table.EverBound) && nonceOld(&e, cmd.from, cmd.nonce) {", now: "if e.Is(table.EverBound) && nonceOld(&e, cmd.from, cmd.nonce) && false {",
		by: reason("nonce/lower"),
	},
	{
		rule: "a bad nonce puts expiry off once",
		file: "engine/commit.go",
		old:  "a.Deferred == 0 {", now: "a.Deferred != 1 {",
		by: model,
	},
	{
		rule: "BIND_RECEIVED at a new endpoint waits for every worker",
		file: "engine/commit.go",
		old:  "\t\tafter = c.shared.grace.next()", now: "\t\tafter = 0",
		by: model,
	},
	{
		rule: "DISCONNECT overtakes no RELAY",
		file: "engine/commit.go",
		old:  "after := c.shared.grace.next()\n\tm := proto.Disconnect", now: "after := c.shared.grace.done\n\tm := proto.Disconnect",
		by: model,
	},
	{
		rule: "what is overdue waits for every worker",
		file: "engine/expiry.go",
		old:  "c.queue.push(c.shared.grace.next(), expire, h)", now: "c.queue.push(0, expire, h)",
		by: model,
	},
	{
		rule: "what waits goes out in the order of its commits",
		file: "engine/queue.go",
		old:  "if q.empty() || q.deeds[q.head].after > done {", now: "if q.empty() {",
		by: model,
	},
	{
		rule: "an endpoint's former owner is without one",
		file: "engine/commit.go",
		old:  "c.shared.table.Bind(e.Handle, cmd.from); displaced != 0 {", now: "c.shared.table.Bind(e.Handle, e.Endpoint); displaced != 0 {",
		by: model,
	},
	{
		rule: "ERROR 6 for a link to oneself",
		file: "engine/commit.go",
		old:  "if t.id == sender.ID {", now: "if t.joiner == sender.ID && t.id == sender.ID {",
		by: reason("error_self_connect"),
	},
	{
		rule: "a joiner asks for the host of its own match",
		file: "engine/commit.go",
		old:  "t.tenant != a.Tenant || t.match != a.Match {", now: "t.tenant != a.Tenant {",
		by: model,
	},
	{
		rule: "a joiner is not asked for a link",
		file: "engine/commit.go",
		old:  "case alloc.RoleHost:\n\t\treturn true", now: "case alloc.RoleHost, alloc.RoleJoiner:\n\t\treturn true",
		by: model,
	},
	{
		rule: "a ticket is for the player to whom it was issued",
		file: "engine/commit.go",
		old:  "return t.joiner == sender.ID || t.player == a.Player", now: "return t.role == alloc.RoleTicket || t.player == a.Player",
		by: model,
	},
	{
		rule: "a player's ticket serves its other allocation in the match",
		file: "engine/commit.go",
		old:  "return t.joiner == sender.ID || t.player == a.Player", now: "return t.joiner == sender.ID",
		by: model,
	},
	{
		rule: "a joiner is reserved for a host of its own tenant",
		file: "engine/reserve.go",
		old:  "c.shared.table.Account(e.Handle).Tenant != m.tenant:", now: "c.shared.table.Account(e.Handle).Tenant == 0:",
		by: model,
	},
	{
		rule: "a joiner is reserved for a host, not for a joiner",
		file: "engine/reserve.go",
		old:  "case !ok || e.Role != table.RoleHost ||", now: "case !ok ||",
		by: model,
	},
	{
		rule: "a host has no more links than it asked for",
		file: "engine/commit.go",
		old:  "case a.Links >= a.MaxConnections:", now: "case a.Links > a.MaxConnections:",
		by: reason("rejected"),
	},
	{
		rule: "a CONNECT_REQUEST that comes again takes no further place",
		file: "engine/commit.go",
		old:  "if sender.Link != host.Handle {", now: "if sender.Link != host.Handle || cmd.now > 0 {",
		by: model,
	},
	{
		rule: "a host gets 20 new links a second",
		file: "engine/commit.go",
		old:  "case !c.shared.budgets.unlimited && !linkRate.Take(", now: "case c.shared.budgets.unlimited && !linkRate.Take(",
		by: model,
	},
	{
		rule: "a link waits for its host to be bound",
		file: "engine/commit.go",
		old:  "case host.Endpoint.IsZero():", now: "case host.Endpoint == sender.Endpoint:",
		by: reason("host_unbound"),
	},
	{
		rule: "DISCONNECT names a member of the match",
		file: "engine/commit.go",
		old:  "return ok && c.shared.table.Account(e.Handle).Match == match", now: "return ok && (match == peer || !e.ID.IsZero())",
		by: model,
	},
	{
		rule: "DISCONNECT is forwarded to the peer",
		file: "engine/commit.go",
		old:  "c.reply(after, peer.Endpoint, m.Append(c.buf[:0]))", now: "_ = m",
		by: model,
	},
	{
		rule: "DISCONNECT of somebody who is spoofed at waits",
		file: "engine/commit.go",
		old:  "if c.shared.spoof.suspects(sender.Handle, cmd.now) {", now: "if c.shared.spoof.suspects(sender.Handle, cmd.now) && false {",
		by: reason("held/disconnect"),
	},
	{
		rule: "CLOSE of somebody who is spoofed at waits",
		file: "engine/commit.go",
		old:  "if !c.shared.spoof.suspects(sender.Handle, cmd.now) {", now: "if !c.shared.spoof.suspects(sender.Handle, cmd.now) || true {",
		by: reason("held/close"),
	},
	{
		rule: "CLOSE sends nothing",
		file: "engine/commit.go",
		old:  "if why == EndExpired && !e.Endpoint.IsZero()", now: "if !e.Endpoint.IsZero()",
		by: model,
	},
	{
		rule: "a relay that drains takes no hosts",
		file: "engine/reserve.go",
		old:  "if host == nil && c.drain.active.Load() {", now: "if host != nil && c.drain.active.Load() {",
		by: engineTest("TestDrain"),
	},
	{
		rule: "a drain ends at its threshold",
		file: "engine/drain.go",
		old:  "left <= d.threshold ||", now: "left < d.threshold ||",
		by: engineTest("TestDrainThreshold"),
	},
	{
		rule: "a drain ends at its deadline",
		file: "engine/drain.go",
		old:  "d.until != 0 && now >= d.until {", now: "d.until != 0 && now < 0 {",
		by: engineTest("TestDrainDeadline"),
	},
	{
		rule: "a grace period that runs is not one for what is committed in it",
		file: "engine/grace.go",
		old:  "return g.done + 2", now: "return g.done + 1",
		by: engineTest("TestToldOfAnEarlierStay"),
	},
}
