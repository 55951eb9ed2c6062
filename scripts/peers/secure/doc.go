// Package secure puts DTLS 1.2 between an endpoint of the load generator and a
// relay. The handshake is made by pion, over the very socket that the load will
// use; the records after it are made here, since a connection of pion has
// goroutines and a socket of its own, and a generator that spends its time in them
// is no measure of a relay.
package secure
