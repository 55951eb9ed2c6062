// Package address has the type of a peer's address: a UDP endpoint or an
// allocation of a relay. Packages link and utp share it without importing each other.
package address
