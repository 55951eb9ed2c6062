package machine

// Space is what a file system has left for users other than root.
type Space struct {
	Bytes uint64
	// Inodes is the number of files that can still be made, if CountsInodes: some file systems have no limit.
	Inodes       uint64
	CountsInodes bool
}
