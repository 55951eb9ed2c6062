// Package keyfile owns how secrets and certificates lie on disk: written whole
// or not at all, readable by their owner alone, and seen when they change. What
// is in them is its callers' business.
package keyfile
