//go:build mutants

package mutants

// What time does, and when the relay does not believe it.
var inTime = []mutant{
	{
		rule: "nobody expires early",
		file: "engine/expiry.go",
		old:  "return max(last, a.Deferred)", now: "return max(last-1, a.Deferred)",
		by: model,
	},
	{
		rule: "who was heard of after it was marked lives",
		file: "engine/expiry.go",
		old:  "if why, over := c.over(h, now); over {", now: "if why, over := c.over(h, now); over || why == EndExpired {",
		by: model,
	},
	{
		rule: "a reservation that nobody binds ends",
		file: "engine/expiry.go",
		old:  "return c.brake.extend(a.Reserved, c.shared.rules.bindWithin)", now: "return c.brake.extend(a.Reserved, c.shared.rules.idleAlone)",
		by: model,
	},
	{
		rule: "a host may wait a minute for its first link",
		file: "engine/expiry.go",
		old:  "idle = c.shared.rules.idleAlone", now: "idle = c.shared.rules.idle",
		by: model,
	},
	{
		rule: "the first link starts the clocks of a host again",
		file: "engine/commit.go",
		old:  "c.shared.table.Activity(host.Handle).Heard(now)", now: "_ = now",
		by: model,
	},
	{
		rule: "who only receives ends",
		file: "engine/expiry.go",
		old:  "c.brake.extend(heard, max(c.shared.rules.hear, idle)))", now: "c.brake.extend(max(heard, active), max(c.shared.rules.hear, idle)))",
		by: model,
	},
	{
		rule: "a bad nonce puts expiry off",
		file: "engine/expiry.go",
		old:  "return max(last, a.Deferred)", now: "return last",
		by: model,
	},
	{
		rule: "an unproven endpoint is not told that it ended",
		file: "engine/commit.go",
		old:  "!e.Endpoint.IsZero() && proven {", now: "!e.Endpoint.IsZero() && (proven || why == EndExpired) {",
		by: model,
	},
	{
		rule: "a CLOSE that may be forged is cancelled by its owner",
		file: "engine/expiry.go",
		old:  "heard <= a.Closing-lingerTicks {", now: "heard <= a.Closing {",
		by: model,
	},
	{
		rule: "a CLOSE that waited takes effect",
		file: "engine/expiry.go",
		old:  "a.Closing != 0 && now > a.Closing {\n\t\tif heard", now: "a.Closing == 1 && now > a.Closing {\n\t\tif heard",
		by: model,
	},
	{
		rule: "a DISCONNECT that may be forged is cancelled by a RELAY of its sender",
		file: "engine/expiry.go",
		old:  "if by <= a.Leaving-lingerTicks {", now: "if by <= a.Leaving {",
		by: model,
	},
	{
		rule: "a link that nobody uses ends",
		file: "engine/expiry.go",
		old:  "if max(fromHost, fromJoiner) < a.Linked {", now: "if max(fromHost, fromJoiner) < 1 {",
		by: model,
	},
	{
		rule: "a mass expiry is spread",
		file: "engine/expiry.go",
		old:  "quota := c.expires * int(min(", now: "quota := 9 * c.expires * int(min(",
		by: engineTest("TestExpiryPace"),
	},
	{
		rule: "time in which the relay stood still does not count",
		file: "engine/brake.go",
		old:  "last += s.to - s.from", now: "last += 0",
		by: model,
	},
	{
		rule: "nobody expires in the second after the relay stood still",
		file: "engine/brake.go",
		old:  "return b.holds || tick(now) <= b.settle", now: "return b.holds",
		by: model,
	},
	{
		rule: "the brake goes on before a mass expiry",
		file: "engine/brake.go",
		old:  "(c.sendsFail(now) || c.lapseSoon()):", now: "c.sendsFail(now):",
		by: engineTest("TestBrakeHolds"),
	},
	{
		rule: "the brake goes on when sends fail for the network",
		file: "engine/brake.go",
		old:  "(c.sendsFail(now) || c.lapseSoon()):", now: "c.lapseSoon():",
		by: engineTest("TestBrakeNetworkDown"),
	},
	{
		rule: "the brake lets go",
		file: "engine/brake.go",
		old:  "if b.holds && now >= b.until {", now: "if b.holds && now < 0 {",
		by: engineTest("TestBrakeHolds"),
	},
	{
		rule: "the brake does not go on again within a minute",
		file: "engine/brake.go",
		old:  "case now >= b.release && (", now: "case (",
		by: engineTest("TestBrakeHolds"),
	},
	{
		rule: "few who expire are no mass expiry",
		file: "engine/brake.go",
		old:  "if sum < brakeAtLeast {", now: "if sum < 1 {",
		by: engineTest("TestBrakeShare"),
	},
	{
		rule: "a fifth of the bound is a mass expiry",
		file: "engine/brake.go",
		old:  "return sum*brakeShare > bound", now: "return sum*2 > bound",
		by: engineTest("TestBrakeShare"),
	},
	{
		rule: "reservations that lapse are no mass expiry",
		file: "engine/brake.go",
		old:  "ok && !e.Endpoint.IsZero() && c.lifeTick(h) < at {", now: "ok && e.Handle != 0 && c.lifeTick(h) < at {",
		by: engineTest("TestBrakeUnbound"),
	},
	{
		rule: "a stall before a limit began does not make it longer",
		file: "engine/brake.go",
		old:  "since < s.to && last >= s.from {", now: "last >= s.from {",
		by: engineTest("TestBrakeStalls"),
	},
	{
		rule: "a process that stood still knows it",
		file: "engine/brake.go",
		old:  "gap > stallMillis {", now: "gap > 100*stallMillis {",
		by: engineTest("TestStandstill"),
	},
	{
		rule: "the brake goes on when an interface goes down",
		file: "engine/brake.go",
		old:  "case b.outage():", now: "case b.outage() && now < 0:",
		by: engineTest("TestFlap"),
	},
	{
		rule: "one reply without a route is no outage",
		file: "engine/brake.go",
		old:  "tried >= sendsAtLeast &&", now: "tried >= 1 &&",
		by: engineTest("TestOneUnreachable"),
	},
	{
		rule: "some sends that fail are no outage",
		file: "engine/brake.go",
		old:  "failed*2 > tried", now: "failed > 0",
		by: engineTest("TestBrakeNetworkDown"),
	},
	{
		rule: "ERROR 1 does not go to the next owner of an endpoint",
		file: "engine/control.go",
		old:  "c.shared.table.ByEndpoint(d.to); !taken {", now: "c.shared.table.ByEndpoint(d.to); !taken || now > 0 {",
		by: engineTest("TestLastWord"),
	},
}
