// Package foreign sees sockets of other processes on the relay's UDP port.
//
// It owns the watch over the port: whoever runs as the same user may join a
// group of SO_REUSEPORT sockets, and the kernel then gives that process a share
// of the players' datagrams. Nobody can prevent that but the system's users;
// but it must not go unnoticed. Linux tells which sockets there are; on other
// systems the watch sees nothing.
package foreign
