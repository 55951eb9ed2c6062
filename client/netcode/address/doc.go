// Package address owns the places that datagrams of games come from and go to:
// package link moves datagrams between them, package utp keeps connections with
// them, and neither knows the other.
package address
