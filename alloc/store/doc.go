// Package store remembers which join code leads to which host: [Memory] for
// relay and API in one process. It owns the life of a join code, and no other
// package does.
//
// A code of Memory takes some 50 bytes: an entry of 32 bytes in a slab, and
// two cells of 4 bytes in indexes that are half full on average. Nothing of it
// holds a pointer, so the collector does not look into it.
//
// Every store keeps the contract of alloc.Store and is put through the tests
// of package storetest. One point that the interface leaves open is settled
// there: a host has one code, so PutCode reports false and changes nothing for
// a host that has one already. That makes concurrent first requests for a code
// agree on one, across processes as well.
package store
