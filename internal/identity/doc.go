// Package identity finds out who holds a bearer token: a JSON Web Token (RFC
// 7519) that somebody whom the operator trusts has signed.
//
// It owns the keys of issuers, the rules of which token counts for which
// project, and the order in which a token is looked at. It knows nothing of HTTP
// requests and of what a caller may do: a [Verifier] turns a token into an
// [Identity] or an error.
//
// # A token's way
//
//	size        at most 8 KiB, three parts
//	header      alg is RS256, PS256, ES256, EdDSA or HS256; no crit
//	issuer      iss is one of the configured ones, exactly
//	key         by kid among that issuer's keys; a key serves only the algorithms
//	            of its type, and only that of its alg if it names one
//	signature   before this nothing of the token is believed
//	time        exp is required; exp, nbf and iat with 60 s of leeway
//	rules       the first rule of the issuer whose audience, project and
//	            environment fit says who it is
//
// So alg none, HS256 with a public key for a secret, and a key of one issuer
// under the name of another end before any signature is computed. RSA keys have
// 2048 to 8192 bits, EC keys lie on P-256, secrets have 32 bytes or more. An
// issuer has either published keys or a secret, never both.
//
// # Keys
//
// Published keys (JWKS, RFC 7517) are fetched when [Verifier.Run] begins and then
// every 10 minutes. A token with an unknown kid has them fetched at once, at
// most every 30 s however many such tokens there are, one fetch at a time. A
// request waits up to 2 s for a fetch under way and never starts one of its own.
// A fetch that fails in any way, be it an error, a time-out, a document that is
// cut off, larger than 256 KiB or without a usable key, leaves the last good keys in
// force for as long as the process runs, and is repeated after 1 s to 1 min. Keys
// of a type that is not known here are skipped.
//
// # Other issuers
//
// A [Verifier] does not change. [Verifier.With] makes one for other issuers, which
// has the keys already that the first one has fetched, and [Verifier.Activate] has
// them kept fresh from then on, with the same Run. The keys of an issuer that
// stays are not fetched again for it, and who leaves is not asked any more.
//
// # Players
//
// The player is the sub of the token, within project and environment. Issuers
// that serve one project and environment share its names: whoever one of them
// calls anna is the anna of the other.
//
// # Presets
//
// [Unity] is a preset for tokens of Unity Authentication. Known from the published SDK:
// sub is the player's id, and aud is a list with envName:<environment>. Tokens are signed
// with RS256 under published keys. Not verified with a real token: the addresses of issuer
// and keys, and the claim project_id. All of Unity's customers share that issuer, so the
// project must be configured.
//
// [Development] is for tokens of [Mint], signed with a secret of one's own.
package identity
