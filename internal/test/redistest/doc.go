// Package redistest starts real Redis servers for tests: one, sentinels with a
// master and its replica, or a cluster. It owns their processes, which end with
// the test, and with the test program if that is killed.
//
// REDIS_SERVER in the environment names another program to start, for example
// valkey-server; a machine without that program fails the test. Without the variable, a machine
// without redis-server fails the test where CI is true, and skips it with the reason elsewhere.
package redistest
