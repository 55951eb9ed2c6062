//go:build mutants

package mutants

func identityTest(name string) killer { return killer{"./internal/identity", name, ""} }
func hooksTest(name string) killer    { return killer{"./internal/hooks", name, ""} }

// Whose token is believed, and who else has a say in who plays.
var inIdentity = []mutant{
	{
		rule: "tokens: a public key is no secret",
		file: "internal/identity/verifier.go",
		old:  "if (alg == algHS256) != (known.source == nil) {", now: "if alg != algHS256 && known.source == nil {",
		by: identityTest("TestConfusion"),
	},
	{
		rule: "tokens: alg is one of five",
		file: "internal/identity/verifier.go",
		old:  "jwt.WithValidMethods(permitted), ", now: "",
		by: identityTest("TestAlgorithms"),
	},
	{
		rule: "tokens: exp is required",
		file: "internal/identity/verifier.go",
		old:  "jwt.WithExpirationRequired(), ", now: "",
		by: identityTest("TestClaims"),
	},
	{
		rule: "tokens: iat is not in the future",
		file: "internal/identity/verifier.go",
		old:  "jwt.WithIssuedAt(),", now: "",
		by: identityTest("TestClaims"),
	},
	{
		rule: "tokens: extensions that have to be understood are refused",
		file: "internal/identity/verifier.go",
		old:  `t.Header["crit"]`, now: `t.Header["crit "]`,
		by: identityTest("TestShapes"),
	},
	{
		rule: "tokens: at most 8 KiB",
		file: "internal/identity/verifier.go",
		old:  "if len(token) > MaxToken {", now: "if len(token) > 4*MaxToken {",
		by: identityTest("TestShapes"),
	},
	{
		rule: "tokens: a key serves the algorithms of its type",
		file: "internal/identity/key.go",
		old:  "if slices.Contains(k.alg, alg) {", now: "if slices.Contains(permitted, alg) {",
		by: identityTest("TestFind"),
	},
	{
		rule: "tokens: RSA keys have 2048 bits",
		file: "internal/identity/key.go",
		old:  "bits < minRSABits ||", now: "bits < 1024 ||",
		by: identityTest("TestKeys"),
	},
	{
		rule: "tokens: the audience is ours",
		file: "internal/identity/rules.go",
		old:  "!slices.ContainsFunc(audience, ours)", now: "!slices.ContainsFunc(audience, ours) && len(audience) == 0",
		by: identityTest("TestClaims"),
	},
	{
		rule: "tokens: the project is the one that the rule names",
		file: "internal/identity/rules.go",
		old:  `if wanted != "" && name != wanted {`, now: `if wanted != "" && name == "" {`,
		by: identityTest("TestUnity"),
	},
	{
		rule: "tokens: a failed fetch leaves the keys in force",
		file: "internal/identity/source.go",
		old:  "s.pool.failures.Add(1)", now: "s.pool.failures.Add(1); s.current.Store(nil)",
		by: identityTest("TestFailures"),
	},
	{
		rule: "tokens: unknown keys cause one fetch",
		file: "internal/identity/source.go",
		old:  "now.Sub(s.asked) < s.cfg.MinInterval", now: "now.Sub(s.asked) < 0",
		by: identityTest("TestStorm"),
	},
	{
		rule: "tokens: who is trusted no more is asked no more",
		file: "internal/identity/pool.go",
		old:  "if wanted[s.url] != s {", now: "if false {",
		by: identityTest("TestTakeOverStops"),
	},
	{
		rule: "tokens: the keys of an issuer that stays are not fetched again",
		file: "internal/identity/verifier.go",
		old:  "s, ok := former[url]", now: "s, ok := former[\"\"]",
		by: identityTest("TestTakeOver"),
	},
	{
		rule: "quotas: who comes back after a restart counts",
		file: "engine/recovery.go",
		old:  "c.projects.name(cmd.claims.tenant, name)", now: "_ = name",
		by: killer{"./engine", "TestUsageAfterARestart", ""},
	},
	{
		rule: "admission: without an answer nobody comes in, unless the operator says so",
		file: "internal/hooks/admission.go",
		old:  "if a.cfg.FailOpen {", now: "if true {",
		by: hooksTest("TestAnswers"),
	},
	{
		rule: "admission: who fails too often has a rest",
		file: "internal/hooks/breaker.go",
		old:  "if b.failed < breakAfter {", now: "if b.failed >= 0 {",
		by: hooksTest("TestBreaker"),
	},
	{
		rule: "hooks: the signature covers the time",
		file: "internal/hooks/signature.go",
		old:  "mac.Write([]byte(t))", now: "_ = t",
		by: hooksTest("TestSignature"),
	},
	{
		rule: "calls to an operator's URL follow no redirect",
		file: "internal/outcall/endpoint.go",
		old:  "return http.ErrUseLastResponse", now: "return nil",
		by: killer{"./internal/outcall", "TestCalls", ""},
	},
	{
		rule: "HTTP: an address that forges tokens has no more looked at",
		file: "alloc/httpapi/limits.go",
		old:  "h.limits.rejectedTokens.charge(address, h.cfg.perAddress(), h.now())", now: "_ = address",
		by: httpapiTest("TestForgersPause"),
	},
	{
		rule: "a reservation that somebody objects to is not made",
		file: "alloc/admission.go",
		old:  "if err := s.admit(ctx, q); err != nil {", now: "if err := s.admit(ctx, q); err != nil && false {",
		by: allocTest("TestAdmit"),
	},
	{
		rule: "a project has as much as its quota and no more",
		file: "internal/quota/guard.go",
		old:  "u.Allocations >= l.Allocations", now: "u.Allocations > l.Allocations",
		by: killer{"./internal/quota", "TestGuard", ""},
	},
}
