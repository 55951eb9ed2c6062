//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package sock

// reserve does nothing: there is no portable way here.
func reserve(int, int64) error { return nil }
