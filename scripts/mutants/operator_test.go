//go:build mutants

package mutants

func adminTest(name string) killer { return killer{"./internal/admin", name, ""} }
func appTest(name string) killer   { return killer{"./internal/app", name, ""} }

// What an operator does to a running relay.
var inOperator = []mutant{
	{
		rule: "operator: who is kicked loses its link before its allocation, and both sides hear of it",
		file: "engine/end.go",
		old:  "c.separate(&e, &host, tick(now))", now: "_ = host",
		by: engineTest("TestKick"),
	},
	{
		rule: "operator: the host hears that the player left, not that it left itself",
		file: "engine/end.go",
		old:  "{{host, joiner}, {joiner, host}}", now: "{{host, joiner}, {host, host}}",
		by: engineTest("TestKick"),
	},
	{
		rule: "operator: a host cannot be kicked",
		file: "engine/end.go",
		old:  "return ErrHost", now: "return nil",
		by: engineTest("TestKick"),
	},
	{
		rule: "operator: who was closed gets no ERROR 1",
		file: "engine/commit.go",
		old:  "why == EndExpired && !e.Endpoint.IsZero()", now: "why != EndClosed && !e.Endpoint.IsZero()",
		by: engineTest("TestEnd"),
	},
	{
		rule: "operator: who is ended before it came back stays out",
		file: "engine/end.go",
		old:  "c.recovery.ended[id] = struct{}{}", now: "_ = id",
		by: engineTest("TestEndWithoutAFile"),
	},
	{
		rule: "seats: those of a host that is ended before it came back are free",
		file: "engine/end.go",
		old:  "c.seats.awaited -= awaitedSeats(&lost.Record)", now: "_ = lost.Record",
		by: engineTest("TestSeatsAfterARestart"),
	},
	{
		rule: "operator: a listing goes on where it stopped",
		file: "engine/listing.go",
		old:  "l.next = at", now: "l.next = at + 1",
		by: engineTest("TestListing"),
	},
	{
		rule: "operator: a listing ends at the limit of its page",
		file: "engine/listing.go",
		old:  "at < end && len(l.found) < room", now: "at < end",
		by: engineTest("TestListing"),
	},
	{
		rule: "seats: a host takes one for itself",
		file: "engine/seats.go",
		old:  "s.awaited+1+int64(most) <= s.most", now: "s.awaited+int64(most) <= s.most",
		by: engineTest("TestSeats"),
	},
	{
		rule: "seats: those of hosts that may come back are not given away",
		file: "engine/seats.go",
		old:  "s.taken.Load()+s.awaited+1", now: "s.taken.Load()+1",
		by: engineTest("TestSeatsAfterARestart"),
	},
	{
		rule: "seats: they are given back at the end of a host",
		file: "engine/projects.go",
		old:  "c.seats.taken.Add(-c.seatsOf(e.Handle))", now: "c.seats.taken.Add(0)",
		by: engineTest("TestSeats"),
	},
	{
		rule: "seats: who did not come back in time keeps none",
		file: "engine/recovery.go",
		old:  "c.seats.awaited -= awaitedSeats(&lost.Record)", now: "_ = lost.Record",
		by: engineTest("TestSeatsLost"),
	},
	{
		rule: "usage: a player who binds again is one player",
		file: "engine/commit.go",
		old:  "if first {\n\t\tc.schedule(e.Handle)", now: "if first || moved {\n\t\tc.schedule(e.Handle)",
		by: engineTest("TestUsageRoams"),
	},
	{
		rule: "usage: players count until their end",
		file: "engine/projects.go",
		old:  "p.players(-1, c.shared.clock())", now: "p.players(0, c.shared.clock())",
		by: engineTest("TestUsage"),
	},
	{
		rule: "usage: what is relayed counts for the sender's project",
		file: "engine/relay.go",
		old:  "w.traffic.add(own.Tally(), len(pkt))", now: "w.traffic.add(0, len(pkt))",
		by: engineTest("TestUsage"),
	},
	{
		rule: "limits: another quota holds for the next datagram",
		file: "engine/relay.go",
		old:  "s.shared.live.Store(l.live(s.cfg.Unlimited))", now: "s.shared.live.CompareAndSwap(nil, l.live(s.cfg.Unlimited))",
		by: engineTest("TestSetLimits"),
	},
	{
		rule: "admin: with a token, nobody is let in without it",
		file: "internal/admin/access.go",
		old:  "case a.token && !a.has(r):", now: "case a.token && !a.has(r) && !local(r):",
		by: adminTest("TestAccess"),
	},
	{
		rule: "admin: on a public address without a token, others see numbers only",
		file: "internal/admin/access.go",
		old:  "case a.token || !a.public || numbers(r) || local(r):", now: "case true:",
		by: adminTest("TestAccess"),
	},
	{
		rule: "admin: a name that a web page chose is not the machine itself",
		file: "internal/admin/access.go",
		old:  "ip.Unmap().IsLoopback() && ownHost(r.Host)", now: "ip.Unmap().IsLoopback()",
		by: adminTest("TestAccess"),
	},
	{
		rule: "reload: settings that cannot be used change nothing",
		file: "internal/app/reload.go",
		old:  "err = Check(read.Config, a.opts.Mode)", now: "_ = Check(read.Config, a.opts.Mode)",
		by: appTest("TestReloadRefused"),
	},
	{
		rule: "reload: what needs a restart does not show as if it were in force",
		file: "internal/app/reload.go",
		old:  "next = now.Adopted(*read, live)", now: "next = *read",
		by: appTest("TestReload"),
	},
}
