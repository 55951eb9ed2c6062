// Package keyfile owns how secrets and certificates lie on disk: written whole
// or not at all, opened only if no other user can have planted or changed them,
// readable by their owner alone, and seen when they change. What is in them is
// its callers' business, unless it is one secret as a text.
package keyfile
