//go:build !linux

package machine

// ReadQueues returns nothing: other systems are not read.
func ReadQueues() (q Queues) { return q }
