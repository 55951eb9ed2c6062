// Package alloc decides who may talk to whom.
//
// It owns the sealed connection data that proves what an allocation is for, and
// the keys it is sealed with; join codes; and the Allocations service on top, which
// allocates and joins. It opens no socket and starts no goroutine. HTTP is in
// httpapi, and the JSON types are in api.
//
// # Words
//
//	allocation  the right of one player to use the relay, with an id and a key
//	host        an allocation that others may be linked to
//	joiner      an allocation that may be linked to the host of its match
//	match       a host and its joiners, named by the host's id
//	link        leave for a joiner and a host to send to each other
//	binding     the endpoint at which the owner of an allocation is reached
//	reserved    in the table, not bound yet
//	ended       gone for good; its slot may still wait to be recycled
//
//	connection data  255 sealed bytes that say what was reserved, see claims.go
//	ticket           the connection data with which a joiner asks for its host
//	epoch            the week that names a sealing key
package alloc
