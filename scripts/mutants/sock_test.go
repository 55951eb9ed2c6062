//go:build mutants

package mutants

// The sockets never give up, and lose no more than what was refused.
var inSock = []mutant{
	{
		rule: "sock: a truncated datagram is marked",
		file: "internal/sock/batch_linux.go",
		old:  "h.hdr.Flags&unix.MSG_TRUNC != 0", now: "h.hdr.Flags&unix.MSG_CTRUNC != 0",
		by: sockTest("TestOddDatagrams"),
	},
	{
		rule: "sock: the tail of a batch goes out after a datagram that was refused",
		file: "internal/sock/conn.go",
		old:  "c.refused(b, first, errno, res)\n\t\t\tfirst++", now: "c.refused(b, first, errno, res)\n\t\t\tfirst = b.n",
		by: sockTest("TestSendFixedScripts"),
	},
	{
		rule: "sock: a batch that was taken in part goes on where it stopped",
		file: "internal/sock/conn.go",
		old:  "return min(n, end-first), 0", now: "return end - first, 0",
		by: sockTest("TestSendScripts"),
	},
	{
		rule: "sock: a send that was interrupted is tried again",
		file: "internal/sock/conn.go",
		old:  "limit = maxInterrupts", now: "limit = 0",
		by: sockTest("TestSendFixedScripts"),
	},
	{
		rule: "sock: a run that was refused goes out one by one",
		file: "internal/sock/conn.go",
		old:  "if count == 1 || !mergeRefused(errno) {", now: "if count == 1 || mergeRefused(errno) {",
		by: sockTest("TestMergedScripts"),
	},
	{
		rule: "sock: receive errors that repeat are slowed down",
		file: "internal/sock/conn.go",
		old:  "c.backOff(b)", now: "_ = c.backOff",
		by: sockTest("TestRecvBackOff"),
	},
	{
		rule: "sock: slots are armed again after each receive",
		file: "internal/sock/batch_linux.go",
		old:  "h.Namelen = uint32(b.nameLen)\n\t\th.SetControllen(b.ctrlLen)", now: "h.Namelen = 0\n\t\th.SetControllen(b.ctrlLen)",
		by: sockTest("TestRecvScripts"),
	},
	{
		rule: "sock: a reply leaves from the address that was sent to",
		file: "internal/sock/batch_linux.go",
		old:  "if !ok || to.Listener() != b.listener {", now: "if ok || to.Listener() != b.listener {",
		by: sockTest("TestWildcardAnswersFromAddressSentTo"),
	},
	{
		rule: "sock: a link that is down is noticed by its errors",
		file: "internal/sock/conn.go",
		old:  "case syscall.ENETDOWN, syscall.ENETUNREACH:", now: "case syscall.ENETDOWN:",
		by: sockTest("TestSendFixedScripts"),
	},
	{
		rule: "sock: a descriptor that is gone ends the worker",
		file: "internal/sock/conn.go",
		old:  "errno != syscall.EBADF && errno != syscall.ENOTSOCK ||", now: "errno != syscall.ENOTSOCK ||",
		by: sockTest("TestLostDescriptor"),
	},
}
