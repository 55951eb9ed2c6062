// Package identity verifies bearer tokens: JSON Web Tokens (RFC 7519) that a trusted
// issuer has signed.
//
// # Verification
//
// The checks, in this order:
//
//	size        at most 8 KiB, three parts
//	header      alg is RS256, PS256, ES256, EdDSA or HS256; no crit
//	issuer      iss equals that of a rule
//	key         by kid among the issuer's keys; a key permits only the algorithms of
//	            its type, and only that of its alg if it has one
//	signature   no claim but iss is used before this
//	time        exp is required; exp, nbf and iat with 60 s of leeway
//	rules       the first rule of the issuer whose audience, project and environment
//	            fit determines the identity
//
// So alg none, HS256 with a public key as secret, and a key of another issuer are refused
// before any signature is computed. RSA keys have 2048 to 8192 bits, EC keys are on P-256,
// secrets have at least 32 bytes. An issuer has either published keys or a secret.
//
// # Keys
//
// [Verifier.Run] fetches published keys (JWKS, RFC 7517) at its start and then every 10
// minutes. A token with an unknown kid causes a fetch at once, at most every 30 s however
// many such tokens there are, one fetch at a time. A token waits up to 2 s for a fetch. A
// fetch fails if there is an error, a timeout, or a document that is truncated, larger
// than 256 KiB or without a usable key. The keys of the last successful fetch then stay
// in use without a time limit, and the fetch is repeated after 1 s to 1 min. Keys of an
// unknown type are skipped.
//
// # Players
//
// A player is identified by the sub of the token within project and environment. Issuers
// with the same project and environment share its players: the same sub is the same
// player. The sub is a string, as RFC 7519 (4.1.2) requires: a number is refused.
//
// # Presets
//
// [Unity] is a preset for tokens of Unity Authentication, [Development] for those of
// [Mint].
package identity
