// Package foreign detects sockets of other processes on the relay's UDP port, and finds the process
// that holds a port.
//
// A process of the same user may join a group of SO_REUSEPORT sockets, and the kernel then
// gives it a share of the players' datagrams. A relay cannot prevent that. On other systems
// than Linux the package detects none.
package foreign
