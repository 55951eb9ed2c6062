// Package netsim owns bad networks: a [Sim] wraps any link.Link, a live one
// too, and delays, loses, repeats, reorders and corrupts what passes, in each
// direction by its own [Params]. Handshakes and heartbeats suffer as data does.
//
// All chance comes from a seed, and all time from the caller's Advance. The
// same seed, parameters and calls over a link that behaves the same give the
// same datagrams at the same times, on every machine; [Tap] turns that into a
// hash that a test can compare. Each datagram draws the same number of random
// values, and each direction has its own, so that a change of one parameter
// leaves the luck of the others as it was.
//
// What is delayed comes out with an Advance: the resolution is the tick.
package netsim
