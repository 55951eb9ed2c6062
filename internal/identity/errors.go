package identity

import "errors"

// Errors of [Verifier.Verify]. Their texts hold nothing of the token.
var (
	// ErrMalformed: no JSON Web Token, one larger than MaxToken, or one with
	// extensions that have to be understood.
	ErrMalformed = errors.New("identity: not a usable token")
	// ErrAlgorithm: an algorithm that is not permitted, at all or with this key.
	ErrAlgorithm = errors.New("identity: algorithm is not permitted")
	// ErrIssuer: nobody who is trusted.
	ErrIssuer = errors.New("identity: unknown issuer")
	// ErrKey: the issuer has no such key.
	ErrKey = errors.New("identity: unknown key")
	// ErrSignature: the signature is not the issuer's.
	ErrSignature = errors.New("identity: wrong signature")
	// ErrExpired: its time is over; a new token will do.
	ErrExpired = errors.New("identity: token has expired")
	// ErrTime: not valid yet, or without a time at which it expires.
	ErrTime = errors.New("identity: token is not valid now")
	// ErrRules: meant for somebody else, or without project, environment or player.
	ErrRules = errors.New("identity: token is not for this relay")
	// ErrKeysUnavailable: the keys of the issuer cannot be had at the moment, so
	// that nobody can tell.
	ErrKeysUnavailable = errors.New("identity: the issuer's keys are not available")
)

// ErrConfig is wrapped by what [New] and [Mint] refuse.
var ErrConfig = errors.New("identity: bad configuration")
