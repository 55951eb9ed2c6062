//go:build mutants

package mutants

// The Allocations service, its store, and HTTP.
var inService = []mutant{
	{
		rule: "environments of one project are tenants of their own",
		file: "alloc/tenant.go",
		old:  `sha256.Sum256([]byte(t.Project + "\x00" + t.Environment))`, now: `sha256.Sum256([]byte(t.Project + "\x00"))`,
		by: storeTest("TestMemory"),
	},
	{
		rule: "a code is found by its own tenant only",
		file: "internal/store/memory.go",
		old:  "m.slab.at(n).tenant != tenant {", now: "m.slab.at(n).tenant != tenant && tenant == 0 {",
		by: storeTest("TestMemory"),
	},
	{
		rule: "a tenant has a code once",
		file: "internal/store/memory.go",
		old:  "m.findHost(host) >= 0 || m.findCode(key) >= 0 {", now: "m.findHost(host) >= 0 {",
		by: storeTest("TestMemory"),
	},
	{
		rule: "a forgotten code leads nowhere",
		file: "internal/store/memory.go",
		old:  "m.byCode.remove(m.hashCode(key), n, m.codeOf)", now: "_ = key",
		by: storeTest("TestMemoryAgainstMaps"),
	},
	{
		rule: "a join code dies with its host",
		file: "alloc/service.go",
		old:  "s.OnBind(id) // an allocation may end unbound\n\ts.store.Forget(id)", now: "s.OnBind(id) // an allocation may end unbound\n\t_ = id",
		by: allocTest("TestEndedForgets"),
	},
	{
		rule: "a code is not stored for a host that ended meanwhile",
		file: "alloc/codes.go",
		old:  "if _, err := s.relay.Describe(ctx, host); err != nil {", now: "if _, err := s.relay.Describe(ctx, host); err != nil && ctx.Err() != nil {",
		by: allocTest("TestCodeNeverOutlivesItsHost"),
	},
	{
		rule: "a join code is for a host of the caller's tenant",
		file: "alloc/codes.go",
		old:  "d.Role != RoleHost || d.Tenant != c.Tenant.Hash() ||", now: "d.Role != RoleHost ||",
		by: allocTest("TestJoinCodeOwnership"),
	},
	{
		rule: "a join code is for the owner of its host",
		file: "alloc/codes.go",
		old:  "d.Tenant != c.Tenant.Hash() || !c.owns(d) {", now: "d.Tenant != c.Tenant.Hash() {",
		by: allocTest("TestJoinCodeOwnership"),
	},
	{
		rule: "nameless callers own nothing of one another",
		file: "alloc/tenant.go",
		old:  `return c.Player != "" && d.Player ==`, now: `return d.Player ==`,
		by: allocTest("TestJoinCodeOwnership"),
	},
	{
		rule: "nobody is told a code that is not kept",
		file: "alloc/codes.go",
		old:  "case err == nil:\n\t\treturn code, nil", now: "case err == nil || true:\n\t\treturn code, nil",
		by: allocTest("TestKeepFails"),
	},
	{
		rule: "a player reserves so many and no more",
		file: "alloc/admission.go",
		old:  "if int(o.countByPlayer[p]) >= o.limit {", now: "if int(o.countByPlayer[p]) > o.limit {",
		by: allocTest("TestOutstandingIsBounded"),
	},
	{
		rule: "a code takes 28 days to guess",
		file: "alloc/joincode.go",
		old:  "for codes < need && length", now: "for codes*20 < need && length",
		by: allocTest("TestCodeLenRule"),
	},
	{
		rule: "symbols of a code are equally likely",
		file: "alloc/joincode.go",
		old:  "if int(b) < fairBytes {", now: "if int(b) < 256 {",
		by: allocTest("TestNewCodeRefusesBadBytes"),
	},
	{
		rule: "failed joins make codes longer",
		file: "alloc/service.go",
		old:  "s.failedJoins.add(c.Tenant.Hash(), s.elapsed())", now: "_ = s.elapsed",
		by: allocTest("TestFailedJoinsLengthenNewCodes"),
	},
	{
		rule: "HTTP: ten failed joins pause a player",
		file: "alloc/httpapi/calls.go",
		old:  "h.countFailedJoin(ctx, r.source)", now: "_ = r.source",
		by: httpapiTest("TestFailedJoinsPauseThePlayer"),
	},
	{
		rule: "HTTP: failed joins pause an address",
		file: "alloc/httpapi/limits.go",
		old:  "wait = max(wait, h.limits.failedJoinsByAddress.peek(f.address, h.now()))", now: "_ = f.address",
		by: httpapiTest("TestFailedJoinsPauseTheAddress"),
	},
	{
		rule: "HTTP: requests are limited by address",
		file: "alloc/httpapi/limits.go",
		old:  "if p := tooManyRequests(addressLimited, h.limits.addresses.peek(f.address, now)); p != nil {", now: "if p := tooManyRequests(addressLimited, h.limits.addresses.peek(f.address, now)); p != nil && false {",
		by: httpapiTest("TestRequestsOfAnAddress"),
	},
	{
		rule: "HTTP: X-Forwarded-For counts from trusted proxies only",
		file: "alloc/httpapi/server.go",
		old:  "for len(hops) > 0 && contains(trusted, addr) {", now: "for len(hops) > 0 {",
		by: httpapiTest("TestClientAddress"),
	},
	{
		rule: "HTTP: a body has at most 16 KiB",
		file: "alloc/httpapi/handler.go",
		old:  "http.MaxBytesReader(w, r.Body, MaxBody)", now: "r.Body",
		by: httpapiTest("TestBodyTooLarge"),
	},
	{
		rule: "HTTP: a request has one Authorization header",
		file: "alloc/httpapi/auth.go",
		old:  "if len(values) != 1 {", now: "if len(values) < 1 {",
		by: httpapiTest("TestUnauthorized"),
	},
	{
		rule: "HTTP: an address has so many connections",
		file: "alloc/httpapi/server.go",
		old:  "l.open[address] >= l.limits.PerAddress", now: "l.open[address] > l.limits.PerAddress",
		by: httpapiTest("TestLimitListener"),
	},
	{
		rule: "HTTP: a connection that is closed gives its place up",
		file: "alloc/httpapi/server.go",
		old:  "c.once.Do(c.release)", now: "c.once.Do(func() {})",
		by: httpapiTest("TestLimitListenerForgets"),
	},
}
